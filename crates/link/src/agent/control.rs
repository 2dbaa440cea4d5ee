//! The agent's end of the stream on which the two ends talk about the link itself.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use h2::server::SendResponse;
use http::Response;

use crate::handshake::{self, MAX_MESSAGE, Message, Progress, Refusal, RefusalCode};
use crate::shared::{Phase, Shared};

/// Hears what the gateway wants, and answers when the agent leaves: that is the whole protocol. A gateway opens the
/// stream when it wants something; that the agent leaves it knows from its GOAWAY as well.
pub(super) async fn attend(shared: Arc<Shared>, mut stream: RecvStream, mut respond: SendResponse<Bytes>) {
    let mut phase = shared.watch();
    let mut listening = true;
    loop {
        tokio::select! {
            biased;
            leaving = phase.wait_for(|phase| !phase.takes_requests()) => {
                if leaving.is_ok() {
                    // It fails only on a link that has ended.
                    let _ = respond.send_response(Response::new(()), true);
                }
                return;
            }
            word = hear(&mut stream), if listening => {
                listening = false;
                match word {
                    Some(refusal) if refusal.code == RefusalCode::Draining => shared.advance(Phase::Moving),
                    Some(refusal) => shared.dismiss(refusal),
                    None => {}
                }
            }
        }
    }
}

// One message, then the end of the stream.
async fn hear(stream: &mut RecvStream) -> Option<Refusal> {
    let mut bytes = BytesMut::new();
    while let Some(chunk) = stream.data().await {
        let chunk = chunk.ok()?;
        let _ = stream.flow_control().release_capacity(chunk.len());
        if bytes.len() + chunk.len() > MAX_MESSAGE {
            return None;
        }
        bytes.extend_from_slice(&chunk);
    }
    match handshake::decode(&bytes) {
        Ok(Progress::Done(Message::Refusal(refusal))) => Some(refusal),
        _ => None,
    }
}
