//! `tarbet kube proxy SITE`: kubectl through a port of this machine, sealed up to the site's agent.
//!
//! The port is for whoever shows the token in the kubeconfig; client-go shows one over TLS only, so the port has
//! a certificate, of an authority of this machine's own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use jiff::Timestamp;
use serde_json::json;
use tarbet_identity::authority::{Authority, Leaf, Usage};
use tarbet_identity::tls::{Acceptor, CredentialSource, ServerTls};
use tarbet_identity::{Token, TokenKind, files};
use tarbet_link::ByteStream;
use tarbet_reach::client::LocalKubernetes;
use tarbet_reach::names::SiteName;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::problem::chain;

use super::super::endpoint::{ServerArgs, state_folder};
use super::super::known_sites;
use super::super::port::Port;
use super::{default_kubeconfig, lead, other_way, read, refuse_foreign, unusable, write};
use crate::output::Format;

pub const EXAMPLES: &str = "Examples:
  tarbet kube proxy lab &
  kubectl --context lab get pods
  tarbet kube proxy lab --context lab-sealed                     beside a context of the same name
  tarbet kube proxy lab --caller-key issuer.key --caller ann     for rules that name callers

Gateways carry what passes and cannot read it, also where a site takes nothing else (accept_plain: false).";

/// The folder of the authority, in the state folder.
const AUTHORITY: &str = "proxy-authority";

#[derive(Debug, Args)]
pub struct ProxyArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// The site
    site: SiteName,
    /// Where to listen on this machine
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDR")]
    listen: SocketAddr,
    /// The kubeconfig to write into; KUBECONFIG or ~/.kube/config if absent
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// What the context is called; as the site if absent
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Trust keys of the site that are not known on this machine yet
    #[arg(long)]
    trust_new_key: bool,
    /// Replace a context of this name that leads elsewhere
    #[arg(long)]
    force: bool,
}

pub async fn run(args: ProxyArgs, format: Format) -> Result<(), Problem> {
    let server = args.server.connect()?;
    let site = server.client()?.site(args.site.clone());
    let instead = "use `tarbet kube login`";
    let keys = known_sites::must_have(&server, &args.site, args.trust_new_key, instead).await?;
    let file = args.kubeconfig.unwrap_or_else(default_kubeconfig);
    let turn = files::turn(&file);
    let mut config = read(&file)?;
    let context = args.context.as_deref().unwrap_or(args.site.as_str());
    refuse_foreign(other_way(&config, context, &args.site).as_deref(), context, &file, args.force)?;
    let token = Token::generate(TokenKind::User)
        .map_err(|error| Problem::new(&ground::INTERNAL, "A token cannot be made.").because(chain(&error)))?;
    let local = LocalKubernetes::new(site.sealed(keys, server.prove(&args.site)?)?, token.text().clone());
    let (acceptor, authority) = certificate(args.listen)?;
    let port = Port::bind(args.listen).await?;
    let address = port.address;
    let cluster = json!({
        "server": format!("https://{address}"), "certificate-authority-data": STANDARD.encode(authority),
    });
    lead(&mut config, context, &args.site, &cluster, &json!({"token": token.text().expose()}))
        .map_err(|cause| unusable(&file, &cause))?;
    write(&file, &config)?;
    drop(turn);
    format.text(&format!(
        "The context `{context}` is in {} and leads through {address}, sealed up to the agent. Ctrl-C ends it.",
        file.display()
    ))?;
    port.run(|stream| {
        let (local, acceptor) = (local.clone(), acceptor.clone());
        async move {
            match acceptor.accept(stream).await {
                Ok(stream) => local.serve(ByteStream::new(stream)).await,
                Err(error) => tracing::debug!(cause = %chain(&error), "A connection was not secured."),
            }
        }
    })
    .await
}

/// What the port shows, and the authority by which kubectl knows it.
fn certificate(listen: SocketAddr) -> Result<(Acceptor, String), Problem> {
    let failed = |cause: String| {
        Problem::new(&ground::CERTIFICATE_UNUSABLE, "The port of this machine cannot be given a certificate.")
            .because(cause)
    };
    let now = Timestamp::now();
    let authority = Authority::open(state_folder().join(AUTHORITY), now);
    let authority = Arc::new(authority.map_err(|error| failed(chain(&error)))?);
    let pem = authority.certificate_pem().to_owned();
    let leaf = Leaf::new(Usage::Server).dns("localhost").ip(listen.ip());
    let acceptor = ServerTls::new(CredentialSource::Issued { authority, leaf }).alpn(["h2", "http/1.1"]);
    Ok((acceptor.build(now).map_err(|error| failed(chain(&error)))?, pem))
}
