needs() { echo apt-get dpkg-deb python3; }

# A repository with one package.
setup() {
    mkdir -p package/DEBIAN package/usr/share/viaduct-matrix repository
    head -c 300000 /dev/urandom >package/usr/share/viaduct-matrix/data
    printf '%s\n' 'Package: viaduct-matrix' 'Version: 1' 'Architecture: all' \
        'Maintainer: a <a@example.org>' 'Description: for a test' >package/DEBIAN/control
    dpkg-deb -b package repository/one.deb >/dev/null
    {
        dpkg-deb -f repository/one.deb
        echo 'Filename: ./one.deb'
        echo "Size: $(stat -c %s repository/one.deb)"
        echo "SHA256: $(digest repository/one.deb)"
    } >repository/Packages
}

server() { exec python3 -m http.server --bind 127.0.0.1 --directory repository "$PORT"; }

client() {
    mkdir -p "$HERE/lists/partial" "$HERE/archives/partial" "$HERE/status.d"
    : >"$HERE/status"
    echo "deb [trusted=yes] http://127.0.0.1:$PORT ./" >"$HERE/sources.list"
    cat >"$HERE/apt.conf" <<END
Dir::Etc::sourcelist "$HERE/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State "$HERE";
Dir::State::lists "$HERE/lists";
Dir::State::status "$HERE/status";
Dir::Cache "$HERE";
Dir::Cache::archives "$HERE/archives";
APT::Sandbox::User "root";
Acquire::Languages "none";
END
    export APT_CONFIG="$HERE/apt.conf"
    apt-get -qq update
    apt-get -qq -y --download-only install viaduct-matrix >/dev/null
    digest "$HERE"/archives/*.deb
}
