use proptest::prelude::*;

use super::*;

fn text() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9äß. -]{0,40}"
}

fn uuid() -> impl Strategy<Value = Uuid> {
    any::<u128>().prop_map(Uuid::from_u128)
}

fn versions() -> impl Strategy<Value = Versions> {
    (any::<u16>(), any::<u16>()).prop_map(|(a, b)| Versions { lowest: a.min(b), highest: a.max(b) })
}

fn duration() -> impl Strategy<Value = Duration> {
    any::<u32>().prop_map(|ms| Duration::from_millis(ms.into()))
}

prop_compose! {
    fn any_hello()(
        versions in versions(),
        credential in prop::collection::vec(any::<u8>(), 0..300),
        (name, version) in (text(), text()),
        (instance, connection) in (uuid(), uuid()),
        services in prop::collection::vec(text(), 0..10),
        bulk in any::<bool>(),
    ) -> Message {
        let purpose = if bulk { Purpose::Bulk } else { Purpose::General };
        Message::Hello(Hello {
            versions,
            credential: Credential::new(credential),
            agent: AgentInfo { name, version, instance, connection, services, purpose },
        })
    }
}

fn any_message() -> impl Strategy<Value = Message> {
    prop_oneof![
        any_hello(),
        (any::<u16>(), uuid(), text(), duration()).prop_map(|(version, link, gateway, ping_interval)| {
            Message::Welcome(Welcome { version, link, gateway, ping_interval })
        }),
        (any::<u16>(), text(), prop::option::of(duration()), prop::option::of(versions())).prop_map(
            |(code, text, retry_after, versions)| {
                Message::Refusal(Refusal { code: RefusalCode::from_wire(code), text, retry_after, versions })
            }
        ),
    ]
}

proptest! {
    #[test]
    fn a_message_survives_whatever_way_it_is_cut(message in any_message(), cut in any::<prop::sample::Index>()) {
        let bytes = encode(&message).unwrap();
        let cut = cut.index(bytes.len());
        match decode(&bytes[..cut]).unwrap() {
            Progress::Need(count) => prop_assert!(count >= 1 && cut + count <= bytes.len()),
            Progress::Done(_) => prop_assert!(false, "done at {} of {}", cut, bytes.len()),
        }
        prop_assert_eq!(decode(&bytes).unwrap(), Progress::Done(message));
    }

    #[test]
    fn random_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..400), keep in any::<bool>()) {
        if keep && bytes.len() >= HEADER {
            bytes[..8].copy_from_slice(&MAGIC);
            bytes[8] = bytes[8] % 3 + 1;
            let rest = u32::try_from(bytes.len() - HEADER).unwrap().to_be_bytes();
            bytes[9..HEADER].copy_from_slice(&rest[1..]);
        }
        let _ = decode(&bytes);
    }

    #[test]
    fn a_changed_byte_never_panics(message in any_message(), at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let mut bytes = encode(&message).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = to;
        let _ = decode(&bytes);
    }
}

fn with_field(mut bytes: Vec<u8>, tag: u8, value: &[u8]) -> Vec<u8> {
    put(&mut bytes, tag, value).unwrap();
    let rest = u32::try_from(bytes.len() - HEADER).unwrap().to_be_bytes();
    bytes[9..HEADER].copy_from_slice(&rest[1..]);
    bytes
}

#[test]
fn fields_of_the_future_are_skipped_unless_they_must_be_understood() {
    let refusal = Message::Refusal(Refusal::new(RefusalCode::Quota, "Full."));
    let bytes = encode(&refusal).unwrap();
    assert_eq!(decode(&with_field(bytes.clone(), 90, b"new")), Ok(Progress::Done(refusal)));
    assert_eq!(decode(&with_field(bytes.clone(), 200, b"new")), Err(Malformed::Critical(200)));
    assert_eq!(decode(&with_field(bytes, 1, &[0, 1])), Err(Malformed::Repeated("code")));
}

#[test]
fn too_much_of_anything_is_refused() {
    let agent = AgentInfo {
        name: "a".into(),
        version: String::new(),
        instance: Uuid::nil(),
        connection: Uuid::nil(),
        services: vec!["s".into(); MAX_SERVICES],
        purpose: Purpose::General,
    };
    let versions = Versions { lowest: 1, highest: 1 };
    let hello = |agent: &AgentInfo, credential: usize| {
        let credential = Credential::new(vec![7; credential]);
        encode(&Message::Hello(Hello { versions, credential, agent: agent.clone() }))
    };
    let largest = hello(&agent, MAX_CREDENTIAL).unwrap();
    assert!(matches!(decode(&largest), Ok(Progress::Done(_))));
    assert_eq!(decode(&with_field(largest, 7, b"one more")), Err(Malformed::Value("service")));
    assert_eq!(hello(&agent, MAX_CREDENTIAL + 1), Err(Malformed::Value("credential")));
    let name = "n".repeat(MAX_NAME + 1);
    assert_eq!(hello(&AgentInfo { name, ..agent }, 1), Err(Malformed::Value("name")));

    let mut claim = MAGIC.to_vec();
    claim.extend([HELLO, 0xff, 0xff, 0xff]);
    assert!(matches!(decode(&claim), Err(Malformed::Length(_))), "a long message is refused by its header");
}
