needs() { echo java javac; }

setup() {
    head -c 300000 /dev/urandom >data
    cat >Main.java <<'END'
import java.io.*;
import java.net.*;
import java.nio.ByteBuffer;
import java.nio.channels.*;
import java.nio.file.*;
import java.security.*;

class Main {
    public static void main(String[] args) throws Exception {
        InetSocketAddress at = new InetSocketAddress("127.0.0.1", Integer.parseInt(args[1]));
        if (args[0].equals("server")) serve(at);
        byte[] data = Files.readAllBytes(Path.of("data"));
        for (int i = 0; i < 3; i++) stream(at, data);
        channel(at, data);
    }

    static void serve(InetSocketAddress at) throws Exception {
        ServerSocket server = new ServerSocket();
        server.bind(at);
        while (true) {
            Socket one = server.accept();
            new Thread(() -> {
                try (one) {
                    one.getOutputStream().write(one.getInputStream().readAllBytes());
                } catch (IOException e) { e.printStackTrace(); }
            }).start();
        }
    }

    static void say(byte[] back) throws Exception {
        System.out.println(java.util.HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(back)));
    }

    static void stream(InetSocketAddress at, byte[] data) throws Exception {
        try (Socket one = new Socket()) {
            one.connect(at, 5000);
            one.getOutputStream().write(data);
            one.shutdownOutput();
            say(one.getInputStream().readAllBytes());
        }
    }

    // Not blocking, by a selector.
    static void channel(InetSocketAddress at, byte[] data) throws Exception {
        ByteArrayOutputStream back = new ByteArrayOutputStream();
        ByteBuffer out = ByteBuffer.wrap(data), in = ByteBuffer.allocate(65536);
        try (Selector selector = Selector.open(); SocketChannel one = SocketChannel.open()) {
            one.configureBlocking(false);
            SelectionKey key = one.register(selector, SelectionKey.OP_CONNECT);
            one.connect(at);
            while (key.isValid()) {
                selector.select();
                if (key.isConnectable() && one.finishConnect()) key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
                if (key.isWritable()) {
                    one.write(out);
                    if (!out.hasRemaining()) { one.shutdownOutput(); key.interestOps(SelectionKey.OP_READ); }
                }
                if (key.isReadable()) {
                    in.clear();
                    if (one.read(in) < 0) break;
                    back.write(in.array(), 0, in.position());
                }
            }
            say(back.toByteArray());
        }
    }
}
END
    javac Main.java
}

server() { exec java -XX:TieredStopAtLevel=1 Main server "$PORT"; }

client() { java -XX:TieredStopAtLevel=1 Main client "$PORT"; }
