//! What may be called through a tunnel.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;

use super::order::{Track, Violation};
use super::prefix::MethodPath;
use super::proto::{info, reverse_tunnel as tunnel};

/// The most services, and methods of one service, that an agent may announce.
const MAX_ENTRIES: usize = 1024;

/// The services and methods an agent announced.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Descriptor {
    services: Vec<(Box<str>, Vec<Box<str>>)>,
}

impl Descriptor {
    /// From services and their methods.
    pub fn new<'a>(services: impl IntoIterator<Item = (&'a str, Vec<&'a str>)>) -> Self {
        let services = services
            .into_iter()
            .map(|(name, methods)| (name.into(), methods.into_iter().map(Into::into).collect()))
            .collect();
        Self { services }
    }

    /// Reads the first frame of a tunnel. On success `track` has moved past it.
    pub fn read(track: &mut Track, frame: Bytes) -> Result<Self, Violation> {
        use tunnel::connect_request::Msg;
        let frame = tunnel::ConnectRequest::decode(frame)
            .map_err(|_| track.malformed("a first frame that is not this message"))?;
        let field = frame.msg.as_ref().map(|msg| match msg {
            Msg::Descriptor(_) => 1,
            Msg::Header(_) => 2,
            Msg::Message(_) => 3,
            Msg::Trailer(_) => 4,
            Msg::Error(_) => 5,
        });
        track.step(field)?;
        let Some(Msg::Descriptor(descriptor)) = frame.msg else {
            return Err(track.malformed("a first frame that is not a descriptor"));
        };
        let announced = descriptor.agent_descriptor.ok_or_else(|| track.malformed("an empty descriptor"))?;
        let named = |name: &str| !name.is_empty();
        let fits = |length: usize| length <= MAX_ENTRIES;
        if !fits(announced.services.len())
            || announced.services.iter().any(|service| {
                !named(&service.name)
                    || !fits(service.methods.len())
                    || service.methods.iter().any(|method| !named(&method.name))
            })
        {
            return Err(track.malformed("a descriptor with a nameless or with too many entries"));
        }
        Ok(Self {
            services: announced
                .services
                .into_iter()
                .map(|service| {
                    let methods = service.methods.into_iter().map(|method| method.name.into()).collect();
                    (service.name.into(), methods)
                })
                .collect(),
        })
    }

    /// The first frame of a tunnel that announces this.
    pub fn to_frame(&self) -> tunnel::ConnectRequest {
        let services = self.services.iter().map(|(name, methods)| info::Service {
            name: name.to_string(),
            methods: methods.iter().map(|name| info::Method { name: name.to_string() }).collect(),
        });
        let announced = info::AgentDescriptor { services: services.collect() };
        let descriptor = tunnel::Descriptor { agent_descriptor: Some(announced) };
        tunnel::ConnectRequest { msg: Some(tunnel::connect_request::Msg::Descriptor(descriptor)) }
    }

    /// Whether a method may be called.
    pub fn has(&self, method: &MethodPath) -> bool {
        self.services.iter().any(|(service, methods)| {
            **service == *method.service() && methods.iter().any(|name| **name == *method.method())
        })
    }

    /// The announced methods, as paths.
    pub fn paths(&self) -> impl Iterator<Item = String> + '_ {
        self.services
            .iter()
            .flat_map(|(service, methods)| methods.iter().map(move |method| format!("/{service}/{method}")))
    }
}

/// Remembers the last descriptor of an agent: its tunnels all announce the same.
#[derive(Debug, Default)]
pub(crate) struct Memo(Option<(Bytes, Arc<Descriptor>)>);

impl Memo {
    pub(crate) fn get(&self, frame: &Bytes) -> Option<Arc<Descriptor>> {
        self.0.as_ref().filter(|(bytes, _)| bytes == frame).map(|(_, known)| Arc::clone(known))
    }

    pub(crate) fn set(&mut self, frame: &Bytes, descriptor: &Arc<Descriptor>) {
        // A copy, so as not to hold a whole read buffer.
        self.0 = Some((Bytes::copy_from_slice(frame), Arc::clone(descriptor)));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kas::order::CONNECT_REQUEST;
    use crate::kas::prefix::{Prefix, Rpc};

    fn read(frame: &tunnel::ConnectRequest) -> Result<Descriptor, Violation> {
        Descriptor::read(&mut Track::new(&CONNECT_REQUEST), frame.encode_to_vec().into())
    }

    #[test]
    fn there_and_back() {
        let descriptor = Descriptor::new([("a.B", vec!["C", "D"]), ("e.F", vec![])]);
        assert_eq!(read(&descriptor.to_frame()).unwrap(), descriptor);
        assert_eq!(descriptor.paths().collect::<Vec<_>>(), ["/a.B/C", "/a.B/D"]);
        assert!(descriptor.has(&MethodPath::parse("/a.B/D").unwrap()));
        for absent in ["/a.B/E", "/e.F/D", "/B/C"] {
            assert!(!descriptor.has(&MethodPath::parse(absent).unwrap()), "{absent}");
        }
        let make = MethodPath::of(Rpc::MakeRequest, Prefix::Gitlab);
        assert!(Descriptor::new([(make.service(), vec![make.method()])]).has(&make));
    }

    #[test]
    fn refusals() {
        use tunnel::connect_request::Msg;
        assert!(matches!(read(&tunnel::ConnectRequest { msg: None }), Err(Violation::Empty { .. })));
        let header = Msg::Header(tunnel::Header::default());
        assert!(matches!(
            read(&tunnel::ConnectRequest { msg: Some(header) }),
            Err(Violation::Unexpected { .. })
        ));
        let empty = Msg::Descriptor(tunnel::Descriptor { agent_descriptor: None });
        let nameless = Descriptor::new([("a.B", vec![""])]).to_frame();
        for frame in [tunnel::ConnectRequest { msg: Some(empty) }, nameless] {
            assert!(matches!(read(&frame), Err(Violation::Malformed { .. })));
        }
    }

    proptest! {
        #[test]
        fn noise_is_refused_or_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Descriptor::read(&mut Track::new(&CONNECT_REQUEST), bytes.into());
        }
    }
}
