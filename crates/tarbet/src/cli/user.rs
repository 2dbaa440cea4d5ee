//! `tarbet user …`: the people and programs that call.

use std::collections::BTreeMap;

use clap::{Args, Subcommand, ValueEnum};
use reqwest::Method;
use tarbet_identity::{Token, TokenKind};
use tarbet_reach::directory::Principal;
use tarbet_reach::gateway::NewToken;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::problem::chain;

use super::endpoint::ServerArgs;
use crate::output::Format;

pub const EXAMPLES: &str = "Examples:
  tarbet user add alice --role user --site lab > alice.token
  tarbet user list
  tarbet user revoke alice";

#[derive(Debug, Args)]
pub struct UserArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Say what would be done, and do nothing
    #[arg(long, global = true)]
    plan: bool,
    #[command(subcommand)]
    command: UserCommand,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum RoleArg {
    /// See the site and its state
    Viewer,
    /// Also send requests to it
    User,
    /// Also change its entry and revoke its tokens
    Operator,
}

#[derive(Debug, Subcommand)]
enum UserCommand {
    /// Add a person or program and print its token
    #[command(
        after_help = "Examples:\n  tarbet user add alice --role user --site lab\n  tarbet user add ops --admin"
    )]
    Add {
        /// Its name
        name: String,
        /// What it may do at the named sites
        #[arg(long, value_enum, default_value_t = RoleArg::User)]
        role: RoleArg,
        /// A site, or `*` for every site; may be repeated
        #[arg(long = "site", value_name = "SITE")]
        sites: Vec<String>,
        /// May change everything
        #[arg(long)]
        admin: bool,
    },
    /// Make a token for the first administrator of a new installation; asks no gateway
    #[command(
        after_help = "Examples:\n  (umask 077; tarbet user generate > admin.token)\n\nGive the file to every gateway as gateway.admin_token_file."
    )]
    Generate,
    /// List everybody
    #[command(after_help = "Examples:\n  tarbet user list -o json")]
    List,
    /// Remove somebody and their tokens
    #[command(after_help = "Examples:\n  tarbet user revoke alice")]
    Revoke {
        /// Its name
        name: String,
    },
}

impl UserCommand {
    /// What it changes, in words.
    fn change(&self) -> Option<String> {
        match self {
            Self::Add { name, admin: true, .. } => {
                Some(format!("add the administrator `{name}` and make a token"))
            }
            Self::Add { name, sites, .. } => {
                Some(format!("add `{name}` with a role at {} sites and make a token", sites.len()))
            }
            Self::Revoke { name } => Some(format!("remove `{name}` and all tokens of that name")),
            Self::List | Self::Generate => None,
        }
    }
}

pub async fn run(args: UserArgs, format: Format) -> Result<(), Problem> {
    if matches!(args.command, UserCommand::Generate) {
        let token = Token::generate(TokenKind::User).map_err(|error| {
            Problem::new(&ground::INTERNAL, "A token cannot be made.").because(chain(&error))
        })?;
        return format.text(token.text().expose());
    }
    let server = args.server.connect()?;
    if let Some(change) = args.command.change().filter(|_| args.plan) {
        return format.plan(&[change]);
    }
    match args.command {
        UserCommand::Generate => Ok(()),
        UserCommand::Add { name, role, sites, admin } => {
            let role = role.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
            let roles: BTreeMap<_, _> = sites.into_iter().map(|site| (site, role.clone())).collect();
            let body = serde_json::json!({"name": name, "admin": admin, "roles": roles});
            let token: NewToken = server.ask(Method::POST, "/v1/users", Some(body)).await?;
            if !admin && roles.is_empty() {
                crate::output::note(&format!(
                    "`{name}` may do nothing: it has a role at no site. Revoke it, and give --site SITE, \
                     --site '*' for every site, or --admin."
                ));
            }
            match format {
                Format::Table => format.text(&token.token),
                _ => format.value(&token),
            }
        }
        UserCommand::List => {
            let users: Vec<Principal> = server.ask(Method::GET, "/v1/users", None).await?;
            let rows: Vec<_> = users.iter().map(|user| serde_json::json!(user)).collect();
            format.rows(&["name", "admin", "roles"], &["name", "admin", "roles"], &rows)
        }
        UserCommand::Revoke { name } => {
            server.tell(Method::DELETE, &format!("/v1/users/{name}")).await?;
            let facts = serde_json::json!({ "removed": true, "name": name });
            format.done(&format!("The user `{name}` is removed."), "tarbet user list", &facts)
        }
    }
}
