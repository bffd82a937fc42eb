. "$rows/ftp.sh"

# Active mode: the client listens for the data connection, and the server connects.
client() { transfer off; }
