needs() { echo python3; }

server() {
    exec python3 - "$PORT" <<'END'
import asyncio, sys
async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data); await writer.drain()
    writer.write_eof(); writer.close()
async def main():
    async with await asyncio.start_server(echo, "127.0.0.1", int(sys.argv[1])) as server:
        await server.serve_forever()
asyncio.run(main())
END
}

client() {
    python3 - "$PORT" <<'END'
import asyncio, hashlib, sys
data = open("data", "rb").read()
async def one():
    reader, writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[1]))
    async def send():
        writer.write(data); await writer.drain(); writer.write_eof()
    back, _ = await asyncio.gather(reader.read(), send())
    assert writer.get_extra_info("peername") == ("127.0.0.1", int(sys.argv[1]))
    writer.close(); await writer.wait_closed()
    return hashlib.sha256(back).hexdigest()
async def main():
    print(*await asyncio.gather(*(one() for _ in range(12))), sep="\n")
asyncio.run(main())
END
}
