//! `tarbet site …`: the places that dial in.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use reqwest::Method;
use tarbet_identity::PublicKey;
use tarbet_reach::gateway::{NewSite, NewToken, SiteView, TokenView};
use tarbet_reach::names::SiteName;
use tarbet_telemetry::Problem;

use super::endpoint::{Server, ServerArgs};
use crate::output::Format;

pub const EXAMPLES: &str = "Examples:
  tarbet site add lab            prints the one command to run at the site
  tarbet site list
  tarbet site token lab --expires-in 30d
  tarbet site revoke lab 3f2a…";

#[derive(Debug, Args)]
pub struct SiteArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Say what would be done, and do nothing
    #[arg(long, global = true)]
    plan: bool,
    #[command(subcommand)]
    command: SiteCommand,
}

#[derive(Debug, Subcommand)]
enum SiteCommand {
    /// Add a site and print the command to run there
    #[command(after_help = "Examples:\n  tarbet site add lab\n  tarbet site add lab -o json")]
    Add {
        /// A DNS label
        name: SiteName,
        /// A gateway URL that the site's agent shall dial, instead of those the gateways name; may be repeated
        #[arg(long = "gateway", value_name = "URL")]
        gateways: Vec<String>,
    },
    /// List the sites you may see, with their links
    #[command(after_help = "Examples:\n  tarbet site list\n  tarbet site list -o json")]
    List,
    /// Remove a site and all its tokens; its links end within a minute
    #[command(after_help = "Examples:\n  tarbet site remove lab")]
    Remove {
        /// The site
        name: SiteName,
    },
    /// Make one more token for a site's agents
    #[command(after_help = "Examples:\n  tarbet site token lab\n  tarbet site token lab --expires-in 12h")]
    Token {
        /// The site
        name: SiteName,
        /// When it ends, such as 12h or 30d
        #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
        expires_in: Option<Duration>,
    },
    /// List a site's tokens
    #[command(after_help = "Examples:\n  tarbet site tokens lab")]
    Tokens {
        /// The site
        name: SiteName,
    },
    /// Take a token back; links that use it end within a minute
    #[command(after_help = "Examples:\n  tarbet site revoke lab 3f2a9c…")]
    Revoke {
        /// The site
        name: SiteName,
        /// The token's public name, as `tarbet site tokens` shows it
        token: String,
    },
}

impl SiteCommand {
    /// What it changes, in words.
    fn change(&self) -> Option<String> {
        match self {
            Self::Add { name, .. } => Some(format!("add the site `{name}` and make a token for its agents")),
            Self::Remove { name } => {
                Some(format!("remove the site `{name}` and all its tokens; its links end within a minute"))
            }
            Self::Token { name, .. } => Some(format!("make one more token for the site `{name}`")),
            Self::Revoke { name, token } => {
                Some(format!("take the token {token} of the site `{name}` back; links that use it end"))
            }
            Self::List | Self::Tokens { .. } => None,
        }
    }
}

pub async fn run(args: SiteArgs, format: Format) -> Result<(), Problem> {
    let server = args.server.connect()?;
    if let Some(change) = args.command.change().filter(|_| args.plan) {
        return format.plan(&[change]);
    }
    match args.command {
        SiteCommand::Add { name, gateways } => add(&server, &name, gateways, format).await,
        SiteCommand::List => list(&server, format).await,
        SiteCommand::Remove { name } => {
            server.tell(Method::DELETE, &format!("/v1/sites/{name}")).await?;
            let facts = serde_json::json!({ "removed": true, "name": name });
            format.done(&format!("The site `{name}` is removed."), "tarbet site list", &facts)
        }
        SiteCommand::Token { name, expires_in } => {
            let body = serde_json::json!({"expiresInSeconds": expires_in.map(|duration| duration.as_secs())});
            let token: NewToken =
                server.ask(Method::POST, &format!("/v1/sites/{name}/tokens"), Some(body)).await?;
            match format {
                Format::Table => format.text(&token.token),
                _ => format.value(&token),
            }
        }
        SiteCommand::Tokens { name } => {
            let tokens: Vec<TokenView> =
                server.ask(Method::GET, &format!("/v1/sites/{name}/tokens"), None).await?;
            let rows: Vec<_> = tokens.iter().map(|token| serde_json::json!(token)).collect();
            let nothing = format!("The site has no token. Next: tarbet site token {name}");
            format.rows_or(&nothing, &["id", "created", "expires", "revoked"], &rows)
        }
        SiteCommand::Revoke { name, token } => {
            server.tell(Method::DELETE, &format!("/v1/sites/{name}/tokens/{token}")).await?;
            let facts = serde_json::json!({ "revoked": true, "site": name, "token": token });
            let text = "The token is revoked; links that use it end within a minute.";
            format.done(text, "tarbet site list", &facts)
        }
    }
}

async fn add(
    server: &Server,
    name: &SiteName,
    mut gateways: Vec<String>,
    format: Format,
) -> Result<(), Problem> {
    let body = serde_json::json!({"name": name});
    let site: NewSite = server.ask(Method::POST, "/v1/sites", Some(body)).await?;
    if gateways.is_empty() {
        gateways.clone_from(&site.gateways);
    }
    if gateways.is_empty() {
        let local = server.local.as_ref().map(|local| local.agents.clone());
        gateways.push(local.unwrap_or_else(|| "grpcs://GATEWAY:8150".into()));
    }
    let join = Join { gateways, ca_file: server.ca_file.clone(), issuer: server.issuer() };
    let token = &site.token.token;
    let agent = join.command(name);
    if format != Format::Table {
        let mut told = serde_json::json!(site);
        told["command"] = format!("(umask 077; echo {token} > {name}.token) && {agent}").into();
        return format.value(&told);
    }
    format.text(&format!(
        "The site `{name}` is added. Its token is shown once; run this at the site:\n\n  \
         (umask 077; echo {token} > {name}.token)\n  {agent}\n\n{}\n\nNext: tarbet site list",
        join.remarks(),
    ))
}

/// How an agent joins.
struct Join {
    gateways: Vec<String>,
    ca_file: Option<PathBuf>,
    /// The key of one who vouches for callers, whom the site shall believe.
    issuer: Option<PublicKey>,
}

impl Join {
    /// What the command alone does not bring about.
    fn remarks(&self) -> String {
        let mut remarks = String::new();
        if let Some(file) = &self.ca_file {
            remarks = format!("Copy {} there first, and name its place behind --ca-file. ", file.display());
        }
        remarks
            + "The agent leads nowhere until it is told where to: --kubeconfig FILE, --policy FILE, --plugin slurm."
    }

    /// The one command to run at the site, beside the file with the token.
    fn command(&self, site: &SiteName) -> String {
        let gateways = self.gateways.join(" --gateway ");
        let ca = self.ca_file.as_ref().map(|file| format!(" --ca-file {}", file.display()));
        let issuer = self.issuer.map(|issuer| format!(" --site {site} --issuer {issuer}"));
        let (ca, issuer) = (ca.unwrap_or_default(), issuer.unwrap_or_default());
        format!("tarbet agent --gateway {gateways} --token-file {site}.token{ca}{issuer}")
    }
}

async fn list(server: &Server, format: Format) -> Result<(), Problem> {
    let sites: Vec<SiteView> = server.ask(Method::GET, "/v1/sites", None).await?;
    if format != Format::Table {
        return format.value(&sites);
    }
    if sites.is_empty() {
        return format.text("There are no sites yet. Next: tarbet site add NAME");
    }
    let rows: Vec<_> = sites
        .iter()
        .map(|site| {
            let gateways: std::collections::BTreeSet<_> =
                site.links.iter().map(|link| link.gateway.as_str()).collect();
            let services: std::collections::BTreeSet<_> =
                site.links.iter().flat_map(|link| link.services.iter().map(String::as_str)).collect();
            let join = |set: std::collections::BTreeSet<&str>| set.into_iter().collect::<Vec<_>>().join(",");
            serde_json::json!({
                "name": site.name, "id": site.id, "links": site.links.len(),
                "state": if site.connected { "connected" } else { "waiting" },
                "gateways": join(gateways), "services": join(services),
            })
        })
        .collect();
    let columns = ["name", "id", "state", "links", "gateways", "services"];
    format.rows_or("There is no site that you may use. Next: tarbet site add NAME", &columns, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_names_every_gateway_and_whom_to_believe() {
        let gateways = vec!["grpcs://one:8150".to_owned(), "grpcs://two:8150".to_owned()];
        let mut join = Join { gateways, ca_file: None, issuer: None };
        let site: SiteName = "lab".parse().unwrap();
        let short =
            "tarbet agent --gateway grpcs://one:8150 --gateway grpcs://two:8150 --token-file lab.token";
        assert_eq!(join.command(&site), short);
        let issuer = tarbet_identity::PrivateKey::generate().unwrap().public();
        assert!(!join.remarks().contains("Copy"), "there is nothing to copy");
        (join.ca_file, join.issuer) = (Some("ca.crt".into()), Some(issuer));
        assert!(join.remarks().contains("Copy ca.crt there"), "{}", join.remarks());
        assert_eq!(join.command(&site), format!("{short} --ca-file ca.crt --site lab --issuer {issuer}"));
    }
}
