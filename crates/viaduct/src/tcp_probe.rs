//! Probes of servers over TCP, for health checks.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Length of the part of a status line that is read: `HTTP/1.1 200`.
const STATUS: usize = 12;

/// Connects to `to`, and sends `preface`. The caller limits the time. Errors: the connection
/// failed.
pub async fn connect(to: SocketAddr, preface: &[u8]) -> io::Result<()> {
    TcpStream::connect(to).await?.write_all(preface).await
}

/// Sends `preface`, and requests the head of `path` over HTTP, as the client `agent`. The caller
/// limits the time. Errors: the connection failed, the answer is not HTTP, or its status is not
/// from 200 to 399.
pub async fn http(to: SocketAddr, preface: &[u8], path: &str, agent: &str) -> io::Result<()> {
    let mut stream = TcpStream::connect(to).await?;
    let request = format!(
        "HEAD {path} HTTP/1.1\r\nHost: {to}\r\nUser-Agent: {agent}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(&[preface, request.as_bytes()].concat()).await?;
    let mut line = [0; STATUS];
    stream.read_exact(&mut line).await?;
    let line = String::from_utf8_lossy(&line);
    let code = line.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..)?.parse::<u16>().ok());
    match code {
        Some(200..400) => Ok(()),
        Some(code) => Err(io::Error::other(format!("status {code}"))),
        None => Err(io::Error::other("the answer is not HTTP")),
    }
}

/// Reason of a failed probe, for the operator.
pub fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        _ => error.to_string(),
    }
}
