//! `tarbet caller …`: the proof of who calls that a site believes, whatever the gateways say.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use tarbet_identity::caller::{CallerIssuer, MAX_LIFETIME, RequestDigest};
use tarbet_identity::{PrivateKey, Subject};
use tarbet_reach::client::Prove;
use tarbet_reach::names::SiteName;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::problem::chain;

use crate::output::Format;

pub const EXAMPLES: &str = "Examples:
  tarbet caller key issuer.key               make a key, and print what sites are told of it
  tarbet agent … --site lab --issuer ed25519:…
  tarbet forward lab db.internal:5432 --caller-key issuer.key --caller ann
  tarbet caller token --site lab --as ann --caller-key issuer.key

Whoever holds the key can say of anybody that they call: it belongs to those who vouch for people.";

#[derive(Debug, Subcommand)]
pub enum CallerCommand {
    /// Make the key of one who vouches for callers, if it is missing, and print its public half
    #[command(after_help = "Examples:\n  tarbet caller key issuer.key")]
    Key {
        /// The file with the key
        file: PathBuf,
        /// Say what would be done, and do nothing
        #[arg(long)]
        plan: bool,
    },
    /// Make a token by which a site knows who calls; it lives for five minutes at most
    #[command(
        after_help = "Examples:\n  tarbet caller token --site lab --as ann --caller-key issuer.key\n  tarbet caller token --site lab --as ann --for 'DELETE /api/v1/namespaces/team-a/pods/web' --caller-key issuer.key\n\nThe token travels in the header `tarbet-caller-token`. A request that changes something needs one of its own."
    )]
    Token(TokenArgs),
}

#[derive(Debug, Args)]
pub struct TokenArgs {
    /// The site that shall believe it
    #[arg(long)]
    site: SiteName,
    /// Who calls
    #[arg(long = "as", value_name = "NAME")]
    name: String,
    /// The one request it is good for: its method, and its path with the query
    #[arg(long = "for", value_name = "METHOD PATH", value_parser = request)]
    request: Option<(String, String)>,
    /// The file with that request's body, if it has one
    #[arg(long, value_name = "FILE", requires = "request")]
    body: Option<PathBuf>,
    /// How long it lives, five minutes at most
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = humantime::parse_duration)]
    lasts: Duration,
    /// The key of one who vouches for callers
    #[arg(long, env = "TARBET_CALLER_KEY", value_name = "FILE")]
    caller_key: PathBuf,
}

pub fn run(command: CallerCommand, format: Format) -> Result<(), Problem> {
    match command {
        CallerCommand::Key { file, plan } => {
            if plan && !file.exists() {
                return format.plan(&[format!("make a key in {}", file.display())]);
            }
            let public = PrivateKey::open(&file).map_err(|error| unusable(&file, &chain(&error)))?.public();
            match format {
                Format::Table => format.text(&public.to_string()),
                _ => format.value(&serde_json::json!({"issuer": public})),
            }
        }
        CallerCommand::Token(args) => token(&args, format),
    }
}

fn token(args: &TokenArgs, format: Format) -> Result<(), Problem> {
    let body = match &args.body {
        None => Vec::new(),
        Some(file) => std::fs::read(file).map_err(|error| {
            Problem::new(&ground::BAD_REQUEST, format!("The body in {} cannot be read.", file.display()))
                .because(error.to_string())
        })?,
    };
    let digest = args.request.as_ref().map(|(method, path)| RequestDigest::new(method, path, &body));
    let (site, now) = (subject(&args.site)?, Timestamp::now());
    let token = issuer(&args.caller_key)?
        .issue(&args.name, &site, digest.as_ref(), now, args.lasts)
        .map_err(|error| Problem::new(&ground::INTERNAL, "A token cannot be made.").because(chain(&error)))?;
    if format == Format::Table {
        return format.text(token.expose());
    }
    let seconds = args.lasts.min(MAX_LIFETIME).as_secs();
    format.value(&serde_json::json!({"token": token.expose(), "lastsSeconds": seconds}))
}

/// One who can say who calls from this machine.
#[derive(Clone)]
pub struct Voucher {
    issuer: CallerIssuer,
    name: String,
    /// The key by which sites know the issuer.
    pub public: tarbet_identity::PublicKey,
}

impl Voucher {
    /// With the key in this file, for calls of `name`.
    pub fn open(file: &Path, name: &str) -> Result<Self, Problem> {
        let key = existing(file)?;
        Ok(Self { public: key.public(), issuer: CallerIssuer::new(key), name: name.to_owned() })
    }

    /// Makes tokens for calls to a site, each when it is needed.
    pub fn prove(&self, site: &SiteName) -> Result<Prove, Problem> {
        let (voucher, site) = (self.clone(), subject(site)?);
        Ok(Arc::new(move || {
            let made = voucher.issuer.issue(&voucher.name, &site, None, Timestamp::now(), MAX_LIFETIME);
            // Without one the site says that nobody was proven, which is what happened.
            made.inspect_err(
                |error| tracing::warn!(error = %chain(error), "A caller's token cannot be made."),
            )
            .ok()
        }))
    }
}

fn issuer(file: &Path) -> Result<CallerIssuer, Problem> {
    existing(file).map(CallerIssuer::new)
}

/// A key that is there: one made by mistake would be known to no site.
fn existing(file: &Path) -> Result<PrivateKey, Problem> {
    if !file.exists() {
        return Err(unusable(file, "there is no such file").advising("make one: tarbet caller key FILE"));
    }
    PrivateKey::open(file).map_err(|error| unusable(file, &chain(&error)))
}

fn unusable(file: &Path, cause: &str) -> Problem {
    Problem::new(&ground::SECRET_UNREADABLE, format!("The key in {} cannot be used.", file.display()))
        .at("tarbet command line")
        .because(cause)
}

fn subject(site: &SiteName) -> Result<Subject, Problem> {
    Subject::site(site.as_str()).map_err(|error| {
        Problem::new(&ground::BAD_REQUEST, format!("No token can be made for the site `{site}`."))
            .because(chain(&error))
    })
}

fn request(text: &str) -> Result<(String, String), String> {
    match text.split_once(' ') {
        Some((method, path)) if path.starts_with('/') && method.bytes().all(|b| b.is_ascii_uppercase()) => {
            Ok((method.to_owned(), path.to_owned()))
        }
        _ => Err("expected METHOD PATH, such as 'DELETE /api/v1/namespaces/a/pods/b'".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarbet_identity::caller::{CallerVerifier, Use};

    #[test]
    fn a_request_is_named_by_its_method_and_path() {
        let told = |method: &str, path: &str| Ok((method.to_owned(), path.to_owned()));
        assert_eq!(request("DELETE /a?b=c d"), told("DELETE", "/a?b=c d"));
        for wrong in ["", "GET", "GET a", "get /a", "/a GET"] {
            assert!(request(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn whoever_is_vouched_for_is_believed_at_the_site_and_nowhere_else() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("issuer.key");
        assert!(Voucher::open(&file, "ann").is_err(), "no key is made by mistake");
        let public = PrivateKey::open(&file).unwrap().public();
        let voucher = Voucher::open(&file, "ann").unwrap();
        assert_eq!(voucher.public, public);
        let prove = voucher.prove(&"lab".parse().unwrap()).unwrap();
        let (first, second) = (prove().unwrap(), prove().unwrap());
        assert_ne!(first.expose(), second.expose(), "each has a name of its own");
        let at = |site: &str| CallerVerifier::new(Subject::site(site).unwrap(), [public]).unwrap();
        let told = at("lab").verify(first.expose(), Use::Stream, Timestamp::now()).unwrap();
        assert_eq!(told.principal, "ann");
        assert!(at("paris").verify(first.expose(), Use::Stream, Timestamp::now()).is_err());
    }
}
