//! Metrics endpoint of a service, for Prometheus.
//!
//! ```text
//!   GET /metrics   the service's counters and those of the process (process.rs), in Prometheus'
//!                  text format (exposition.rs)
//!   GET /healthz   200 if the service is healthy, otherwise 503 with its problems
//! ```
//!
//! Each connection carries one request. The number of connections, and the time and memory of
//! each, are bounded, so that clients cannot overload the service.

mod exposition;
mod process;
#[cfg(test)]
mod tests;

pub use exposition::{Exposition, Kind, Labels};

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Maximum number of concurrent connections; further ones are closed immediately.
const MAX_CONNECTIONS: usize = 16;
/// Time within which the request must arrive.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Time within which the complete exchange must end.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of a request head in bytes.
const MAX_HEAD: usize = 8 << 10;
/// Time for which a page is used again, as a multiple of the time in which it was rendered.
const REUSE_FACTOR: u32 = 10;
/// Maximum age of a page that is used again.
const MAX_AGE: Duration = Duration::from_secs(3);
/// Delay before the next attempt after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Opens the listener for metrics. Must be called in a runtime. Errors: the address cannot be used.
pub fn listen(at: SocketAddr) -> Result<TcpListener> {
    Ok(TcpListener::from_std(bind(at)?)?)
}

/// Opens the listener for metrics, outside of a runtime.
///
/// # Errors
/// The address cannot be used.
pub fn bind(at: SocketAddr) -> Result<std::net::TcpListener> {
    let bind = || {
        let listener = std::net::TcpListener::bind(at)?;
        listener.set_nonblocking(true)?;
        Ok::<_, std::io::Error>(listener)
    };
    bind().with_context(|| format!("metrics: cannot use {at}"))
}

/// Accepts the next client. Without a listener the future never completes.
pub async fn accept(listener: Option<&TcpListener>) -> TcpStream {
    let Some(listener) = listener else { return std::future::pending().await };
    loop {
        match listener.accept().await {
            Ok((client, _)) => return client,
            Err(_) => tokio::time::sleep(ACCEPT_RETRY).await,
        }
    }
}

/// Metrics and health of a service.
#[derive(Clone, Debug)]
pub struct Page {
    /// Counters in Prometheus' text format.
    pub counters: String,
    /// Problems of the service, one per line; `None` if it is healthy.
    pub trouble: Option<String>,
}

/// HTTP server for metrics.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Semaphore>);

impl Default for Metrics {
    fn default() -> Self {
        Metrics(Arc::new(Semaphore::new(MAX_CONNECTIONS)))
    }
}

/// Latest page of a service that takes long to render one.
#[derive(Debug, Default)]
pub struct PageCache(Option<(Arc<Page>, Instant)>);

impl PageCache {
    /// Returns the latest page, or a new one from `render`. A page is used for [`REUSE_FACTOR`]
    /// times as long as it took to render, so that many clients cannot keep the service busy.
    pub async fn get(&mut self, render: impl Future<Output = Page>) -> Arc<Page> {
        if let Some((page, until)) = &self.0
            && Instant::now() < *until
        {
            return page.clone();
        }
        let begun = Instant::now();
        let page = Arc::new(render.await);
        let reuse = (begun.elapsed() * REUSE_FACTOR).min(MAX_AGE);
        self.0 = Some((page.clone(), Instant::now() + reuse));
        page
    }
}

impl Metrics {
    /// Answers the single request of `client` with `page`.
    pub fn answer(&self, client: TcpStream, page: impl Into<Arc<Page>>) {
        let Ok(permit) = self.0.clone().try_acquire_owned() else { return };
        let page = page.into();
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let response = respond(&request, &page);
                async move { Ok::<_, Infallible>(response) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(REQUEST_TIMEOUT)
                .max_buf_size(MAX_HEAD)
                .keep_alive(false)
                .serve_connection(TokioIo::new(client), service);
            // Errors are ignored: they concern only the client and its network.
            let _ = tokio::time::timeout(EXCHANGE_TIMEOUT, connection).await;
            drop(permit);
        });
    }
}

fn respond<B>(request: &Request<B>, page: &Page) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET is supported\n".to_owned());
    }
    match (request.uri().path(), &page.trouble) {
        ("/metrics", _) => text(StatusCode::OK, page.counters.clone() + &process::encode()),
        ("/healthz", None) => text(StatusCode::OK, "ok\n".to_owned()),
        ("/healthz", Some(what)) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{what}\n")),
        _ => text(StatusCode::NOT_FOUND, "not found; there are /metrics and /healthz\n".to_owned()),
    }
}

fn text(code: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = code;
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    response
}
