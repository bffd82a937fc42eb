needs() { echo socat; }

server() { exec socat "TCP-LISTEN:$PORT,bind=127.0.0.1,fork,reuseaddr" EXEC:cat; }

client() { socat -t 10 - "TCP:127.0.0.1:$PORT" <data | digest; }
