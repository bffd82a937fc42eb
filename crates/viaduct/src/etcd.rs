//! Access to keys in etcd through the JSON gateway of its version 3 API.

use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::value_parser::destination;

/// Time within which an endpoint must answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum length of an answer in bytes: more than a list of 100,000 members needs.
pub const MAX_ANSWER: u64 = 64 << 20;

/// Key in etcd, or common prefix of several keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Etcd {
    endpoints: Vec<SocketAddr>,
    key: String,
}

/// Key below the prefix of an [`Etcd`], and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Key, relative to that prefix.
    pub name: String,
    /// Value.
    pub value: String,
}

/// Answer to a range request.
#[derive(Deserialize)]
struct Range {
    /// Absent if there is no such key.
    #[serde(default)]
    kvs: Vec<KeyValue>,
}

#[derive(Deserialize)]
struct KeyValue {
    #[serde(default)]
    key: String,
    #[serde(default)]
    value: String,
}

/// Answer to a request for a lease.
#[derive(Deserialize)]
struct Lease {
    #[serde(rename = "ID")]
    id: String,
    /// Absent if the lease has expired.
    #[serde(rename = "TTL")]
    ttl: Option<String>,
}

/// Single answer of a stream, in the wrapper that etcd's JSON gateway adds.
#[derive(Deserialize)]
struct Streamed<T> {
    result: T,
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
    /// Reads the value of the key from the first endpoint that answers. Errors: the error of the
    /// last endpoint, or "there is no such key".
    pub async fn read(&self) -> Result<String> {
        let asked = json!({"key": encoded(&self.key)});
        let range: Range = self.ask("kv/range", &asked).await?;
        let first = range.kvs.first().context("there is no such key")?;
        decoded(&first.value)
    }

    /// Reads all keys below this one, and their values; empty if there are none. Errors: the error
    /// of the last endpoint, or a key or value is invalid.
    pub async fn list(&self) -> Result<Vec<Entry>> {
        // The range ends before `0`, the character that follows `/`.
        let (first, end) = (format!("{}/", self.key), format!("{}0", self.key));
        let asked = json!({"key": encoded(&first), "range_end": encoded(&end)});
        let range: Range = self.ask("kv/range", &asked).await?;
        let entry = |of: &KeyValue| {
            let key = decoded(&of.key)?;
            let name = key
                .strip_prefix(&first)
                .context("etcd has returned a key outside the requested range")?;
            Ok(Entry { name: name.to_owned(), value: decoded(&of.value)? })
        };
        range.kvs.iter().map(entry).collect()
    }

    /// Stores a value below this key until the lease expires. Errors: the error of the last
    /// endpoint.
    pub async fn put(&self, entry: &Entry, lease: &str) -> Result<()> {
        let key = format!("{}/{}", self.key, entry.name);
        let asked = json!({"key": encoded(&key), "value": encoded(&entry.value), "lease": lease});
        self.ask::<Value>("kv/put", &asked).await.map(drop)
    }

    /// Requests a lease, and returns its ID. Errors: those of [`Etcd::put`].
    pub async fn grant(&self, ttl: Duration) -> Result<String> {
        let granted: Lease = self.ask("lease/grant", &json!({"TTL": ttl.as_secs()})).await?;
        Ok(granted.id)
    }

    /// Renews a lease; returns false if the lease has expired. Errors: those of [`Etcd::put`].
    pub async fn renew(&self, lease: &str) -> Result<bool> {
        let renewed: Streamed<Lease> = self.ask("lease/keepalive", &json!({"ID": lease})).await?;
        Ok(renewed.result.ttl.is_some_and(|ttl| ttl != "0"))
    }

    /// Sends a request to one endpoint after the other, until one gives a valid answer. Errors: the
    /// error of the last endpoint.
    async fn ask<T: DeserializeOwned>(&self, what: &str, asked: &Value) -> Result<T> {
        let (mut failed, body) = (anyhow!("there is no endpoint"), asked.to_string());
        for &endpoint in &self.endpoints {
            match timeout(ANSWER_TIMEOUT, post(endpoint, what, &body)).await {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(error)) => failed = error.context(format!("etcd at {endpoint}")),
                Err(_) => failed = anyhow!("etcd at {endpoint} does not answer"),
            }
        }
        Err(failed)
    }
}

async fn post<T: DeserializeOwned>(endpoint: SocketAddr, what: &str, body: &str) -> Result<T> {
    // With HTTP/1.0 the answer is not chunked, and the server closes the connection after it.
    let request = format!(
        "POST /v3/{what} HTTP/1.0\r\nHost: {endpoint}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(endpoint).await?;
    stream.write_all(request.as_bytes()).await?;
    parsed(&read_to_end(stream, MAX_ANSWER).await?)
}

/// Reads until the end of `stream`. Errors: there are more than `max` bytes.
async fn read_to_end(stream: impl AsyncRead + Unpin, max: u64) -> Result<Vec<u8>> {
    let mut answer = Vec::new();
    stream.take(max + 1).read_to_end(&mut answer).await?;
    if answer.len() as u64 > max {
        bail!("the answer is longer than {max} bytes");
    }
    Ok(answer)
}

/// Parses the body of an HTTP answer.
fn parsed<T: DeserializeOwned>(answer: &[u8]) -> Result<T> {
    let answer = String::from_utf8_lossy(answer);
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer is not HTTP")?;
    let status = head.split_whitespace().nth(1).unwrap_or_default();
    if status != "200" {
        bail!("status {status}: {}", body.lines().next().unwrap_or_default());
    }
    serde_json::from_str(body).context("the answer is not from etcd")
}

fn encoded(text: &str) -> String {
    STANDARD.encode(text)
}

fn decoded(base64: &str) -> Result<String> {
    Ok(String::from_utf8(STANDARD.decode(base64)?)?)
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

    #[tokio::test]
    async fn a_longer_answer_is_not_cut() {
        assert_eq!(read_to_end(&b"1234"[..], 4).await.unwrap(), b"1234");
        let error = read_to_end(&b"12345"[..], 4).await.unwrap_err().to_string();
        assert!(error.contains("longer than 4 bytes"), "{error}");
    }

    #[test]
    fn an_answer_has_content_or_a_reason() {
        let ok = "HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n";
        let said = |body: &str| parsed::<Range>(format!("{ok}{body}").as_bytes());
        let kvs = "{\"header\":{},\"kvs\":[{\"key\":\"YQ==\",\"value\":\"eA==\"}],\"count\":\"1\"}";
        assert_eq!(decoded(&said(kvs).unwrap().kvs[0].value).unwrap(), "x");
        assert!(said("{\"header\":{}}").unwrap().kvs.is_empty());
        let error = |answer: &[u8]| parsed::<Range>(answer).err().unwrap().to_string();
        assert!(error(format!("{ok}hello").as_bytes()).contains("not from etcd"));
        assert!(error(b"HTTP/1.0 404 Not Found\r\n\r\nno\n").contains("404"));
        assert!(error(b"SSH-2.0").contains("the answer is not HTTP"));
        let lease = "{\"result\":{\"header\":{},\"ID\":\"7587848943239384586\",\"TTL\":\"30\"}}";
        let lease: Streamed<Lease> = parsed(format!("{ok}{lease}").as_bytes()).unwrap();
        assert_eq!((lease.result.id.len(), lease.result.ttl.as_deref()), (19, Some("30")));
    }
}
