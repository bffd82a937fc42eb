//! HTTP server of the page. Each connection carries one request. The number, duration and memory of
//! connections are bounded, and so is the number of viewers.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tracing::debug;

use super::SharedBoard;
use super::access::Access;
use super::assets::ASSETS;
use super::http::{Content, refusal, response};
use super::viewer::Viewer;

/// Maximum number of browsers that receive samples.
const MAX_VIEWERS: usize = 16;
/// Maximum number of connections, viewers included; further ones are closed immediately.
const MAX_CONNECTIONS: usize = 128;
/// Time within which a request must arrive. A TLS handshake before the request has the same limit.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Time within which an exchange must end, unless it is that of a viewer.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of a request head in bytes.
const MAX_HEAD: usize = 8 << 10;
/// Delay before the next attempt after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// HTTP server of the page.
pub(super) struct Server {
    pages: Arc<Pages>,
    tls: Option<TlsAcceptor>,
    connections: Arc<Semaphore>,
}

/// State that all connections share.
struct Pages {
    board: SharedBoard,
    ticks: watch::Receiver<()>,
    access: Access,
    viewers: Arc<Semaphore>,
}

/// State that a connection shares with its viewer.
#[derive(Debug, Default)]
pub(super) struct Connection {
    is_viewer: AtomicBool,
    stalled: Notify,
}

impl Connection {
    /// Ends the connection, because its client does not read.
    pub(super) fn stall(&self) {
        self.stalled.notify_one();
    }

    /// Waits until the connection must end.
    async fn expire(&self) {
        sleep(EXCHANGE_TIMEOUT).await;
        if self.is_viewer.load(Ordering::Relaxed) {
            self.stalled.notified().await;
        }
    }
}

impl Server {
    /// Creates the server of `board`, which has a new sample when `ticks` changes.
    pub(super) fn new(
        board: SharedBoard,
        ticks: watch::Receiver<()>,
        access: Access,
        tls: Option<TlsAcceptor>,
    ) -> Server {
        let viewers = Arc::new(Semaphore::new(MAX_VIEWERS));
        let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        Server { pages: Arc::new(Pages { board, ticks, access, viewers }), tls, connections }
    }

    /// Accepts connections forever.
    pub(super) async fn serve(&self, listener: &TcpListener) {
        loop {
            let Ok((client, _)) = listener.accept().await else {
                sleep(ACCEPT_RETRY).await;
                continue;
            };
            let Ok(permit) = self.connections.clone().try_acquire_owned() else { continue };
            let (pages, tls) = (self.pages.clone(), self.tls.clone());
            tokio::spawn(async move {
                answer(pages, tls, client).await;
                drop(permit);
            });
        }
    }
}

/// Answers the request of `client`.
async fn answer(pages: Arc<Pages>, tls: Option<TlsAcceptor>, client: TcpStream) {
    let Ok(at) = client.local_addr().map(|at| at.ip()) else { return };
    // Samples are small, and a delayed one looks like a stalled service.
    let _ = client.set_nodelay(true);
    let Some(tls) = tls else { return exchange(pages, at, client).await };
    match timeout(REQUEST_TIMEOUT, tls.accept(client)).await {
        Ok(Ok(client)) => exchange(pages, at, client).await,
        Ok(Err(error)) => debug!("TLS handshake failed: {error}"),
        Err(_) => {}
    }
}

async fn exchange<I>(pages: Arc<Pages>, at: IpAddr, client: I)
where
    I: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let connection = Arc::new(Connection::default());
    let service = service_fn(|request| {
        let response = pages.respond(&request, at, &connection);
        async move { Ok::<_, Infallible>(response) }
    });
    let exchange = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .keep_alive(false)
        .serve_connection(TokioIo::new(client), service);
    // Errors are ignored: they concern only the client and its network.
    tokio::select! {
        _ = exchange => {}
        () = connection.expire() => {}
    }
}

impl Pages {
    fn respond(
        &self,
        request: &Request<Incoming>,
        at: IpAddr,
        connection: &Arc<Connection>,
    ) -> Response<Content> {
        if let Err((status, why)) = self.access.check(request, at) {
            return refusal(status, why);
        }
        let path = request.uri().path();
        if path == "/events" {
            return self.events(request, connection);
        }
        match ASSETS.iter().find(|asset| asset.path == path) {
            Some(asset) => {
                let text = Bytes::from_static(asset.text.as_bytes());
                response(StatusCode::OK, asset.kind, Content::Text(text))
            }
            None => refusal(StatusCode::NOT_FOUND, "not found; the page is at /\n"),
        }
    }

    /// Begins to send samples: of the subject whose number the query gives, or of the first one.
    fn events(
        &self,
        request: &Request<Incoming>,
        connection: &Arc<Connection>,
    ) -> Response<Content> {
        const KIND: &str = "text/event-stream";
        let subject = match request.uri().query().map(|query| query.strip_prefix("subject=")) {
            None => Ok(None),
            Some(id) => id.and_then(|id| id.parse().ok()).map(Some).ok_or(()),
        };
        let Ok(subject) = subject else {
            return refusal(StatusCode::BAD_REQUEST, "?subject=NUMBER is expected\n");
        };
        if *request.method() == Method::HEAD {
            return response(StatusCode::OK, KIND, Content::Text(Bytes::new()));
        }
        let Ok(permit) = self.viewers.clone().try_acquire_owned() else {
            return refusal(
                StatusCode::SERVICE_UNAVAILABLE,
                "16 viewers watch already, the maximum; close one of them\n",
            );
        };
        connection.is_viewer.store(true, Ordering::Relaxed);
        let viewer = Viewer::new(self.board.clone(), subject, connection.clone());
        let events = viewer.start(self.ticks.clone(), permit);
        response(StatusCode::OK, KIND, Content::Events(events))
    }
}
