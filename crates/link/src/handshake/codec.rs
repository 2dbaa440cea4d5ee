//! The handshake in bytes, without any input or output.
//!
//! The envelope is the same in every version, so that any two builds can at least refuse each
//! other in words:
//!
//! ```text
//! magic (8)  kind (1)  length of the rest (3)  fields …
//! field: tag (1)  length (2)  value
//! ```
//!
//! Numbers are big-endian. A field with an unknown tag below 128 is skipped, one from 128 up must
//! be understood. A field may come once, except services.

use std::time::Duration;

use uuid::Uuid;

use super::message::{
    AgentInfo, Credential, Hello, Message, Purpose, Refusal, RefusalCode, Versions, Welcome,
};

/// How every message begins. The first byte is no letter, so HTTP is told apart at once, and it
/// is no TLS record; the line feed shows a transfer that changes line ends.
pub const MAGIC: [u8; 8] = *b"\x89TBLINK\n";
/// Magic, kind and length.
pub const HEADER: usize = 12;
/// The longest message, header included.
pub const MAX_MESSAGE: usize = HEADER + 16 * 1024;

const MAX_CREDENTIAL: usize = 8 * 1024;
const MAX_NAME: usize = 253;
const MAX_SERVICES: usize = 64;
const MAX_TEXT: usize = 1024;

/// Why bytes are not a message, or a message cannot become bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The magic is missing.
    #[error("the first bytes are not those of a link")]
    Magic,
    /// The kind is not known.
    #[error("message kind {0} is not known")]
    Kind(u8),
    /// The message is longer than any may be.
    #[error("the message has {0} bytes, more than {MAX_MESSAGE}")]
    Length(usize),
    /// A field is cut off.
    #[error("a field is longer than the message that holds it")]
    Truncated,
    /// A field must be understood and is not.
    #[error("field {0} must be understood and is not known here")]
    Critical(u8),
    /// A field that may come once came again.
    #[error("field `{0}` came twice")]
    Repeated(&'static str),
    /// A field that must be there is not.
    #[error("field `{0}` is missing")]
    Missing(&'static str),
    /// A field has a value it cannot have.
    #[error("field `{0}` has a value it cannot have")]
    Value(&'static str),
}

/// What a decoder has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// This many more bytes are needed before it is worth trying again.
    Need(usize),
    /// A whole message.
    Done(Message),
}

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const REFUSAL: u8 = 3;
const MUST_UNDERSTAND: u8 = 128;

/// Reads a message from the beginning of `bytes`, which must hold no more than the message.
pub fn decode(bytes: &[u8]) -> Result<Progress, Malformed> {
    let known = bytes.len().min(MAGIC.len());
    if bytes[..known] != MAGIC[..known] {
        return Err(Malformed::Magic);
    }
    let Some(header) = bytes.first_chunk::<HEADER>() else {
        return Ok(Progress::Need(HEADER - bytes.len()));
    };
    let length = HEADER + u32::from_be_bytes([0, header[9], header[10], header[11]]) as usize;
    if !(HELLO..=REFUSAL).contains(&header[8]) {
        return Err(Malformed::Kind(header[8]));
    }
    if length > MAX_MESSAGE || bytes.len() > length {
        return Err(Malformed::Length(length.max(bytes.len())));
    }
    if bytes.len() < length {
        return Ok(Progress::Need(length - bytes.len()));
    }
    let fields = &bytes[HEADER..];
    Ok(Progress::Done(match header[8] {
        HELLO => Message::Hello(hello(fields)?),
        WELCOME => Message::Welcome(welcome(fields)?),
        _ => Message::Refusal(refusal(fields)?),
    }))
}

/// Writes a message.
pub fn encode(message: &Message) -> Result<Vec<u8>, Malformed> {
    let mut out = Vec::with_capacity(512);
    out.extend(MAGIC);
    out.extend([0; 4]);
    let kind = match message {
        Message::Hello(hello) => {
            let agent = &hello.agent;
            put(&mut out, 1, &range(hello.versions))?;
            put(&mut out, 2, limit("credential", hello.credential.reveal(), MAX_CREDENTIAL)?)?;
            put(&mut out, 3, limit("name", agent.name.as_bytes(), MAX_NAME)?)?;
            put(&mut out, 4, limit("version", agent.version.as_bytes(), MAX_NAME)?)?;
            put(&mut out, 5, agent.instance.as_bytes())?;
            put(&mut out, 6, agent.connection.as_bytes())?;
            if agent.services.len() > MAX_SERVICES {
                return Err(Malformed::Value("service"));
            }
            for service in &agent.services {
                put(&mut out, 7, limit("service", service.as_bytes(), MAX_NAME)?)?;
            }
            put(&mut out, 8, &[u8::from(agent.purpose == Purpose::Bulk)])?;
            HELLO
        }
        Message::Welcome(welcome) => {
            put(&mut out, 1, &welcome.version.to_be_bytes())?;
            put(&mut out, 2, welcome.link.as_bytes())?;
            put(&mut out, 3, limit("gateway", welcome.gateway.as_bytes(), MAX_NAME)?)?;
            put(&mut out, 4, &millis(welcome.ping_interval))?;
            WELCOME
        }
        Message::Refusal(refusal) => {
            put(&mut out, 1, &refusal.code.to_wire().to_be_bytes())?;
            put(&mut out, 2, limit("text", refusal.text.as_bytes(), MAX_TEXT)?)?;
            if let Some(after) = refusal.retry_after {
                put(&mut out, 3, &millis(after))?;
            }
            if let Some(versions) = refusal.versions {
                put(&mut out, 4, &range(versions))?;
            }
            REFUSAL
        }
    };
    if out.len() > MAX_MESSAGE {
        return Err(Malformed::Length(out.len()));
    }
    let length = u32::try_from(out.len() - HEADER).unwrap_or(u32::MAX).to_be_bytes();
    out[8..HEADER].copy_from_slice(&[kind, length[1], length[2], length[3]]);
    Ok(out)
}

fn put(out: &mut Vec<u8>, tag: u8, value: &[u8]) -> Result<(), Malformed> {
    let length = u16::try_from(value.len()).map_err(|_| Malformed::Length(value.len()))?;
    out.push(tag);
    out.extend(length.to_be_bytes());
    out.extend(value);
    Ok(())
}

fn range(versions: Versions) -> [u8; 4] {
    let ([a, b], [c, d]) = (versions.lowest.to_be_bytes(), versions.highest.to_be_bytes());
    [a, b, c, d]
}

fn millis(duration: Duration) -> [u8; 4] {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX).to_be_bytes()
}

fn limit<'a>(name: &'static str, value: &'a [u8], most: usize) -> Result<&'a [u8], Malformed> {
    if value.len() > most { Err(Malformed::Value(name)) } else { Ok(value) }
}

fn hello(fields: &[u8]) -> Result<Hello, Malformed> {
    let (mut versions, mut credential, mut name, mut version) = (None, None, None, None);
    let (mut instance, mut connection, mut purpose) = (None, None, None);
    let mut services = Vec::new();
    for field in Fields(fields) {
        let (tag, value) = field?;
        match tag {
            1 => once(&mut versions, "versions", read_range("versions", value)?)?,
            2 => once(&mut credential, "credential", limit("credential", value, MAX_CREDENTIAL)?)?,
            3 => once(&mut name, "name", read_text("name", value, MAX_NAME)?)?,
            4 => once(&mut version, "version", read_text("version", value, MAX_NAME)?)?,
            5 => once(&mut instance, "instance", read_uuid("instance", value)?)?,
            6 => once(&mut connection, "connection", read_uuid("connection", value)?)?,
            7 if services.len() == MAX_SERVICES => return Err(Malformed::Value("service")),
            7 => services.push(read_text("service", value, MAX_NAME)?),
            // A purpose of a newer agent is served like any other link.
            8 => once(&mut purpose, "purpose", if value == [1] { Purpose::Bulk } else { Purpose::General })?,
            other => unknown(other)?,
        }
    }
    Ok(Hello {
        versions: versions.ok_or(Malformed::Missing("versions"))?,
        credential: Credential::new(credential.ok_or(Malformed::Missing("credential"))?),
        agent: AgentInfo {
            name: name.ok_or(Malformed::Missing("name"))?,
            version: version.unwrap_or_default(),
            instance: instance.ok_or(Malformed::Missing("instance"))?,
            connection: connection.ok_or(Malformed::Missing("connection"))?,
            services,
            purpose: purpose.unwrap_or_default(),
        },
    })
}

fn welcome(fields: &[u8]) -> Result<Welcome, Malformed> {
    let (mut version, mut link, mut gateway, mut ping) = (None, None, None, None);
    for field in Fields(fields) {
        let (tag, value) = field?;
        match tag {
            1 => once(&mut version, "version", read_u16("version", value)?)?,
            2 => once(&mut link, "link", read_uuid("link", value)?)?,
            3 => once(&mut gateway, "gateway", read_text("gateway", value, MAX_NAME)?)?,
            4 => once(&mut ping, "ping interval", read_millis("ping interval", value)?)?,
            other => unknown(other)?,
        }
    }
    Ok(Welcome {
        version: version.ok_or(Malformed::Missing("version"))?,
        link: link.ok_or(Malformed::Missing("link"))?,
        gateway: gateway.unwrap_or_default(),
        ping_interval: ping.ok_or(Malformed::Missing("ping interval"))?,
    })
}

fn refusal(fields: &[u8]) -> Result<Refusal, Malformed> {
    let (mut code, mut text, mut after, mut versions) = (None, None, None, None);
    for field in Fields(fields) {
        let (tag, value) = field?;
        match tag {
            1 => once(&mut code, "code", read_u16("code", value)?)?,
            2 => once(&mut text, "text", read_text("text", value, MAX_TEXT)?)?,
            3 => once(&mut after, "retry after", read_millis("retry after", value)?)?,
            4 => once(&mut versions, "versions", read_range("versions", value)?)?,
            other => unknown(other)?,
        }
    }
    Ok(Refusal {
        code: RefusalCode::from_wire(code.ok_or(Malformed::Missing("code"))?),
        text: text.unwrap_or_default(),
        retry_after: after,
        versions,
    })
}

struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u8, &'a [u8]), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let Some(([tag, high, low], rest)) = self.0.split_first_chunk::<3>() else {
            self.0 = &[];
            return Some(Err(Malformed::Truncated));
        };
        let Some((value, rest)) = rest.split_at_checked(usize::from(u16::from_be_bytes([*high, *low])))
        else {
            self.0 = &[];
            return Some(Err(Malformed::Truncated));
        };
        self.0 = rest;
        Some(Ok((*tag, value)))
    }
}

fn once<T>(slot: &mut Option<T>, name: &'static str, value: T) -> Result<(), Malformed> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Malformed::Repeated(name)),
    }
}

fn unknown(tag: u8) -> Result<(), Malformed> {
    if tag >= MUST_UNDERSTAND { Err(Malformed::Critical(tag)) } else { Ok(()) }
}

fn read_text(name: &'static str, value: &[u8], most: usize) -> Result<String, Malformed> {
    let text = std::str::from_utf8(limit(name, value, most)?).map_err(|_| Malformed::Value(name))?;
    // Names and texts go into logs and headers.
    if text.chars().any(char::is_control) { Err(Malformed::Value(name)) } else { Ok(text.to_owned()) }
}

fn read_u16(name: &'static str, value: &[u8]) -> Result<u16, Malformed> {
    value.try_into().map(u16::from_be_bytes).map_err(|_| Malformed::Value(name))
}

fn read_millis(name: &'static str, value: &[u8]) -> Result<Duration, Malformed> {
    let millis = value.try_into().map(u32::from_be_bytes).map_err(|_| Malformed::Value(name))?;
    Ok(Duration::from_millis(millis.into()))
}

fn read_uuid(name: &'static str, value: &[u8]) -> Result<Uuid, Malformed> {
    Uuid::from_slice(value).map_err(|_| Malformed::Value(name))
}

fn read_range(name: &'static str, value: &[u8]) -> Result<Versions, Malformed> {
    let (lowest, highest) = value.split_at_checked(2).ok_or(Malformed::Value(name))?;
    let versions = Versions { lowest: read_u16(name, lowest)?, highest: read_u16(name, highest)? };
    if versions.lowest > versions.highest { Err(Malformed::Value(name)) } else { Ok(versions) }
}

#[cfg(test)]
mod tests;
