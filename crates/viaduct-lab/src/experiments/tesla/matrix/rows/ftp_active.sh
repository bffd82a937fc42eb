. "$rows/ftp.sh"

# The client listens for the data, and the server connects.
client() { transfer off; }
