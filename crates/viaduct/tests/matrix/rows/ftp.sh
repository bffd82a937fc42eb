needs() { echo tnftp vsftpd; }

setup() {
    head -c 300000 /dev/urandom >data
    mkdir empty root root/in
    cp data root
    chmod 777 root/in
    chmod 555 root
}

server() {
    cat >"vsftpd-$PORT.conf" <<END
listen=YES
listen_address=127.0.0.1
listen_port=$PORT
anonymous_enable=YES
no_anon_password=YES
ftp_username=root
anon_root=$DIR/root
anon_upload_enable=YES
write_enable=YES
anon_umask=022
secure_chroot_dir=$DIR/empty
allow_writeable_chroot=YES
port_promiscuous=NO
connect_from_port_20=NO
background=NO
END
    exec vsftpd "vsftpd-$PORT.conf"
}

# The server listens for the data; then the client does.
client() {
    for mode in on off; do
        tnftp -n -v 127.0.0.1 "$PORT" >"$HERE/said" 2>&1 <<END
user anonymous a@example.org
passive $mode
binary
get data $HERE/$mode
put data in/${HERE##*/}-$mode
ls . $HERE/list-$mode
bye
END
        grep -oE '^(1|2|4|5)[0-9][0-9] ' "$HERE/said"
        digest "$HERE/$mode" "root/in/${HERE##*/}-$mode"
    done
}
