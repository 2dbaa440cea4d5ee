//! The reading half of a stream: an HTTP/2 body that becomes messages.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Body;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use tonic::Status;

use super::frame::{Decoder, FrameError};

/// Any error of a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Reads gRPC messages from a body, whoever sends it.
pub struct Inbox {
    body: UnsyncBoxBody<Bytes, BoxError>,
    decoder: Decoder,
    trailers: Option<HeaderMap>,
    ended: bool,
}

impl Inbox {
    /// For a stream with these headers.
    pub fn new<B>(headers: &HeaderMap, body: B) -> Result<Self, FrameError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let decoder = Decoder::new(headers)?;
        Ok(Self { body: body.map_err(Into::into).boxed_unsync(), decoder, trailers: None, ended: false })
    }

    /// A stream that has ended already, with these trailers.
    pub(crate) fn ended(trailers: HeaderMap) -> Self {
        let body = http_body_util::Empty::new().map_err(|never| match never {}).boxed_unsync();
        Self { body, decoder: Decoder::with(false, 0), trailers: Some(trailers), ended: true }
    }

    /// The next message; `None` once the other side has nothing more to say.
    pub fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        loop {
            match self.decoder.next_message() {
                Ok(Some(message)) => return Poll::Ready(Some(Ok(message))),
                Ok(None) => {}
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            }
            if self.ended {
                return Poll::Ready(self.decoder.end().err().map(|error| Err(error.into())));
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.decoder.push(data),
                    Err(frame) => self.trailers = frame.into_trailers().ok(),
                },
                Some(Err(error)) => {
                    self.ended = true;
                    return Poll::Ready(Some(Err(broken(error.as_ref()))));
                }
                None => self.ended = true,
            }
        }
    }

    /// [`Self::poll_message`] to wait for. Nothing is lost when the wait is given up.
    pub async fn message(&mut self) -> Option<Result<Bytes, Status>> {
        poll_fn(|cx| self.poll_message(cx)).await
    }

    /// What came behind the last message.
    pub fn trailers(&self) -> Option<&HeaderMap> {
        self.trailers.as_ref()
    }
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").field("ended", &self.ended).finish_non_exhaustive()
    }
}

/// A stream that broke below gRPC.
pub(crate) fn broken(error: &(dyn std::error::Error + 'static)) -> Status {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(inner) = cause {
        if let Some(reason) = inner.downcast_ref::<h2::Error>().and_then(h2::Error::reason) {
            return Status::unavailable(format!("the stream was reset by the other side ({reason})"));
        }
        cause = inner.source();
    }
    Status::unavailable("the connection under the stream was lost")
}

#[cfg(test)]
mod tests {
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    fn inbox(frames: Vec<Result<Frame<Bytes>, BoxError>>) -> Inbox {
        Inbox::new(&HeaderMap::new(), StreamBody::new(futures::stream::iter(frames))).unwrap()
    }

    #[tokio::test]
    async fn messages_then_trailers_then_nothing() {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", "0".parse().unwrap());
        let mut inbox = inbox(vec![
            Ok(Frame::data(Bytes::from_static(&[0, 0, 0, 0, 1]))),
            Ok(Frame::data(Bytes::from_static(&[9, 0, 0, 0, 0, 0]))),
            Ok(Frame::trailers(trailers)),
        ]);
        assert_eq!(inbox.message().await.unwrap().unwrap(), &[9][..]);
        assert_eq!(inbox.message().await.unwrap().unwrap(), &[][..]);
        assert!(inbox.message().await.is_none());
        assert_eq!(inbox.trailers().unwrap()["grpc-status"], "0");
        assert!(inbox.message().await.is_none());
    }

    #[tokio::test]
    async fn breaks_and_cuts_are_errors() {
        let mut cut = inbox(vec![Ok(Frame::data(Bytes::from_static(&[0, 0, 0])))]);
        assert_eq!(cut.message().await.unwrap().unwrap_err().code(), tonic::Code::Internal);
        let mut reset = inbox(vec![Err(Box::new(h2::Error::from(h2::Reason::CANCEL)))]);
        assert_eq!(reset.message().await.unwrap().unwrap_err().code(), tonic::Code::Unavailable);
    }
}
