needs() { echo git python3 git-http-backend; }

setup() {
    head -c 300000 /dev/urandom >data
    git init -q repository
    cp data repository
    git -C repository add data
    git -C repository -c user.name=a -c user.email=a@example.org commit -q -m one
    mkdir cgi-bin
    printf '#!/bin/sh\nexec git-http-backend\n' >cgi-bin/git
    chmod +x cgi-bin/git
}

# Git's own backend as a CGI program of Python's HTTP server.
server() {
    GIT_PROJECT_ROOT=$DIR GIT_HTTP_EXPORT_ALL=1
    export GIT_PROJECT_ROOT GIT_HTTP_EXPORT_ALL
    # Python's server runs the backend as a user that does not own the repository.
    GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
    export GIT_CONFIG_COUNT GIT_CONFIG_KEY_0 GIT_CONFIG_VALUE_0
    exec python3 -m http.server --cgi --bind 127.0.0.1 "$PORT"
}

client() {
    git clone -q "http://127.0.0.1:$PORT/cgi-bin/git/repository" "$HERE/clone"
    git -C "$HERE/clone" rev-parse HEAD
    digest "$HERE/clone/data"
}
