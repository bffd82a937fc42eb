needs() { echo node; }

server() {
    exec node -e '
const http = require("http");
http.createServer((request, response) => {
  request.pipe(response);
}).listen(+process.argv[1], "127.0.0.1")' "$PORT"
}

client() {
    node -e '
const http = require("http"), fs = require("fs"), crypto = require("crypto");
const agent = new http.Agent({ keepAlive: true, maxSockets: 4 });
const data = fs.readFileSync("data"), port = +process.argv[1];
const once = () => new Promise((done, fail) => {
  const request = http.request({ port, host: "127.0.0.1", method: "POST", agent }, (response) => {
    const hash = crypto.createHash("sha256");
    response.on("data", (part) => hash.update(part)).on("error", fail);
    response.on("end", () => done(hash.digest("hex")));
  });
  request.on("error", fail).end(data);
});
Promise.all(Array.from({ length: 12 }, once)).then((all) => {
  console.log(all.join("\n"));
  agent.destroy();
  return fetch(`http://127.0.0.1:${port}/`, { method: "POST", body: "fetched" });
}).then((response) => response.text()).then(console.log);' "$PORT"
}
