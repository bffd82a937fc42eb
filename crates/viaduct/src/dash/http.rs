//! Responses: their headers, and their bodies.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue,
    REFERRER_POLICY, RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};
use tokio::sync::mpsc;

/// Content security policy: everything comes from this server, and no site frames the page.
pub(super) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'";
/// Seconds after which a refused viewer may try again.
const RETRY_SECONDS: &str = "5";

/// Body of a response.
#[derive(Debug)]
pub(super) enum Content {
    /// Text of known length.
    Text(Bytes),
    /// Events as they happen.
    Events(mpsc::Receiver<Bytes>),
}

impl Body for Content {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Content::Text(text) if text.is_empty() => Poll::Ready(None),
            Content::Text(text) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(text))))),
            Content::Events(events) => {
                events.poll_recv(context).map(|event| event.map(|event| Ok(Frame::data(event))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Content::Text(text) if text.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Content::Text(text) => SizeHint::with_exact(text.len() as u64),
            Content::Events(_) => SizeHint::default(),
        }
    }
}

/// Returns a response with the headers that all responses have.
pub(super) fn response(
    status: StatusCode,
    kind: &'static str,
    content: Content,
) -> Response<Content> {
    let mut response = Response::new(content);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    let all = [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in all {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let own = match status {
        StatusCode::METHOD_NOT_ALLOWED => Some((ALLOW, "GET, HEAD")),
        StatusCode::UNAUTHORIZED => Some((WWW_AUTHENTICATE, "Basic realm=\"viaduct dash\"")),
        StatusCode::SERVICE_UNAVAILABLE => Some((RETRY_AFTER, RETRY_SECONDS)),
        _ => None,
    };
    if let Some((name, value)) = own {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Returns a refusal.
pub(super) fn refusal(status: StatusCode, why: &'static str) -> Response<Content> {
    response(status, "text/plain; charset=utf-8", Content::Text(Bytes::from_static(why.as_bytes())))
}
