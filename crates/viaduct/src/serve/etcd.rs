//! Reading a key from etcd, by the JSON gateway of its version 3 API.

use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::value_parser::destination;

/// Time within which an endpoint must answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum length of an answer in bytes.
const MAX_ANSWER: u64 = 1 << 20;

/// Key in etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Etcd {
    endpoints: Vec<SocketAddr>,
    key: String,
}

/// Answer to a range request.
#[derive(Deserialize)]
struct Range {
    /// Missing if there is no such key.
    #[serde(default)]
    kvs: Vec<KeyValue>,
}

#[derive(Deserialize)]
struct KeyValue {
    #[serde(default)]
    value: String,
}

impl FromStr for Etcd {
    type Err = String;

    /// Parses `HOST:PORT[,HOST:PORT...]/KEY`.
    fn from_str(text: &str) -> Result<Etcd, String> {
        let Some((endpoints, key)) = text.split_once('/').filter(|(_, key)| !key.is_empty()) else {
            return Err("etcd://HOST:PORT/KEY is expected".to_owned());
        };
        let endpoints = endpoints.split(',').map(destination).collect::<Result<_, _>>()?;
        Ok(Etcd { endpoints, key: key.to_owned() })
    }
}

impl std::fmt::Display for Etcd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let endpoints: Vec<_> = self.endpoints.iter().map(ToString::to_string).collect();
        write!(f, "etcd://{}/{}", endpoints.join(","), self.key)
    }
}

impl Etcd {
    /// Reads the value of the key from the first endpoint that has it. Errors: that of the last
    /// endpoint.
    pub async fn read(&self) -> Result<String> {
        let mut failed = anyhow!("there is no endpoint");
        for &endpoint in &self.endpoints {
            match timeout(ANSWER_TIMEOUT, self.ask(endpoint)).await {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(error)) => failed = error.context(format!("etcd at {endpoint}")),
                Err(_) => failed = anyhow!("etcd at {endpoint} does not answer"),
            }
        }
        Err(failed)
    }

    async fn ask(&self, endpoint: SocketAddr) -> Result<String> {
        let body = format!("{{\"key\":\"{}\"}}", STANDARD.encode(&self.key));
        // An answer to HTTP/1.0 is neither chunked nor followed by another one.
        let request = format!(
            "POST /v3/kv/range HTTP/1.0\r\nHost: {endpoint}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = TcpStream::connect(endpoint).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(MAX_ANSWER).read_to_end(&mut answer).await?;
        value(&answer)
    }
}

/// Value in an answer.
fn value(answer: &[u8]) -> Result<String> {
    let answer = String::from_utf8_lossy(answer);
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer of HTTP")?;
    let status = head.split_whitespace().nth(1).unwrap_or_default();
    if status != "200" {
        bail!("status {status}: {}", body.lines().next().unwrap_or_default());
    }
    let range: Range = serde_json::from_str(body).context("the answer is none of etcd")?;
    let first = range.kvs.first().context("there is no such key")?;
    Ok(String::from_utf8(STANDARD.decode(&first.value)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_keys_are_parsed_and_shown() {
        let text = "127.0.0.1:2379,[::1]:2379/viaduct/www";
        let etcd: Etcd = text.parse().unwrap();
        assert_eq!((etcd.endpoints.len(), &etcd.key[..]), (2, "viaduct/www"));
        assert_eq!(etcd.to_string(), format!("etcd://{text}"));
        for wrong in ["127.0.0.1:2379", "127.0.0.1:2379/", "localhost:2379/a", "/a"] {
            assert!(wrong.parse::<Etcd>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_answer_has_the_value_or_a_reason() {
        let ok = "HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n";
        let said = |body: &str| value(format!("{ok}{body}").as_bytes()).map_err(|e| e.to_string());
        let kvs = "{\"header\":{},\"kvs\":[{\"key\":\"YQ==\",\"value\":\"eA==\"}],\"count\":\"1\"}";
        assert_eq!(said(kvs), Ok("x".to_owned()));
        assert_eq!(said("{\"header\":{}}"), Err("there is no such key".to_owned()));
        assert!(said("hello").unwrap_err().contains("none of etcd"));
        assert!(
            value(b"HTTP/1.0 404 Not Found\r\n\r\nno\n").unwrap_err().to_string().contains("404")
        );
        assert!(value(b"SSH-2.0").is_err());
    }
}
