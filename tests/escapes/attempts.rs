//! Attempts, made from a seed: every verb of every listener with every way to write a name that we know.

/// Where an attempt is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Door {
    Api,
    Kubernetes,
    Console,
}

/// What belongs to others.
#[derive(Debug, Clone, Default)]
pub(super) struct Victim {
    pub(super) number: i64,
    pub(super) token: String,
    pub(super) request: String,
}

/// Names that stand in an attempt: those of the victim, or of nothing at all.
#[derive(Debug)]
pub(super) struct Names {
    site: &'static str,
    number: String,
    token: String,
    request: String,
    user: &'static str,
}

impl Names {
    pub(super) fn of(victim: &Victim) -> Self {
        Self {
            site: "vault",
            number: victim.number.to_string(),
            token: victim.token.clone(),
            request: victim.request.clone(),
            user: "ann-of-vault",
        }
    }

    /// Of the same form, and of nobody.
    pub(super) fn absent(victim: &Victim) -> Self {
        // Each digit becomes the next one.
        let turned = |text: &str| {
            let digits = text.chars().map(|c| char::from_digit((c.to_digit(16).unwrap_or(0) + 1) % 16, 16));
            digits.flatten().collect()
        };
        Self {
            site: "vaulx",
            number: (victim.number + 7).to_string(),
            token: turned(&victim.token),
            request: turned(&victim.request),
            user: "ann-of-vaulx",
        }
    }

    /// A text without these names: what differs then is more than the question.
    pub(super) fn blur(&self, text: &str) -> String {
        let capital = self.site.to_uppercase();
        let text =
            text.replace(self.user, "USER").replace(&self.token, "TOKEN").replace(&self.request, "REQUEST");
        let text = text.replace(self.site, "SITE").replace(&capital, "SITE");
        let text = if text.starts_with(STORIES) {
            ["\"began\":", "\"afterUs\":", "over link "].iter().fold(text, |text, mark| untimed(&text, mark))
        } else {
            text
        };
        text.replace(&format!("number {}", self.number), "number N")
            .replace(&format!("`{}`", self.number), "`N`")
            .replace(&format!("gitlab-{}", self.number), "gitlab-N")
            .replace(&format!("/{}", self.number), "/N")
    }
}

/// How the stories of the request that is asked for begin.
const STORIES: &str = "[{\"id\":\"REQUEST\"";

/// Stories without what stands behind this mark: a caller may read those of their own requests, and these began at
/// different times and went over one link or the other.
fn untimed(text: &str, mark: &str) -> String {
    let mut parts = text.split(mark);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + mark + part.trim_start_matches(|letter: char| !matches!(letter, ',' | '}'))
    })
}

/// One attempt, with places for the names: `{s}` a site, `{n}` its number, `{t}` a token, `{r}` a request, `{u}` a user.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) door: Door,
    method: &'static str,
    path: String,
    /// How the caller's token is shown; `{c}` stands for it.
    credential: String,
    caller: usize,
    header: &'static str,
    body: &'static str,
}

impl Attempt {
    /// Whether it asks for counters.
    pub(super) fn counts(&self) -> bool {
        self.path.contains("/links")
    }

    /// Method, path, headers and body with these names.
    pub(super) fn spell(&self, names: &Names, callers: &[String]) -> (String, String, String, String) {
        let fill = |text: &str| {
            text.replace("{s}", names.site)
                .replace("{S}", &names.site.to_uppercase())
                .replace("{n}", &names.number)
                .replace("{t}", &names.token)
                .replace("{r}", &names.request)
                .replace("{u}", names.user)
        };
        let token = &callers[self.caller];
        let credential = fill(&self.credential).replace("{c}", token);
        let credential =
            if token.is_empty() { String::new() } else { format!("authorization: {credential}\r\n") };
        (self.method.into(), fill(&self.path), format!("{credential}{}", fill(self.header)), fill(self.body))
    }
}

const METHODS: [&str; 8] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "BREW"];

/// Ways to write the name of a site into a path.
const FORMS: [&str; 30] = [
    "{s}",
    "{s}",
    "{s}",
    "{s}",
    "{S}",
    "%76ault",
    "{s}%00",
    "{s}%20",
    "%20{s}",
    "{s}.",
    "./{s}",
    "lab/../{s}",
    "lab%2f..%2f{s}",
    "lab%2F{s}",
    "%2e%2e/{s}",
    "..%2f{s}",
    "{s}/",
    "//{s}",
    "/{s}",
    "{s};lab",
    "lab;{s}",
    "{s},lab",
    "lab,{s}",
    "{n}",
    "gitlab-{n}",
    "*",
    "{s}%2f",
    "lab\\..\\{s}",
    "%2576ault",
    "{s}?site=lab",
];

/// What the API offers: `{f}` is where a form of the name goes.
const API: [&str; 16] = [
    "/v1/sites/{f}",
    "/v1/sites/{f}/tokens",
    "/v1/sites/{f}/tokens/{t}",
    "/v1/sites/lab/tokens/{t}",
    "/v1/sites/{f}/links",
    "/v1/sites?name={f}",
    "/v1/users/{u}",
    "/v1/users/{f}",
    "/v1/users?site={f}",
    "/v1/requests/{r}",
    "/v1/requests/{r}/{f}",
    "/v1/requests?site={f}",
    "/v1/links?site={f}",
    "/v1/links/{f}",
    "/v1/whoami?name={u}",
    "/v1/modules/jobs/{f}",
];

/// What the listener for Kubernetes offers.
const KUBERNETES: [&str; 14] = [
    "/sites/{f}/api/v1/pods",
    "/sites/{f}/api/v1/namespaces/default/secrets/x",
    "/sites/{f}/version",
    "/sites/{f}",
    "/sites/{f}/api/v1/namespaces/x/pods/y/exec?command=id",
    "/sites/{f}/api/v1/namespaces/x/pods/y/log?follow=true",
    "/sites/{f}/api/v1/watch/secrets",
    "/api/v1/pods",
    "/version",
    "/-/k8s/api/v1/pods",
    "/{f}/api/v1/pods",
    "/v1/sites/{f}",
    "/Sites/{f}/version",
    "/sites/{f}/sites/{s}/version",
];

/// Ways to show a token.
const CREDENTIALS: [&str; 14] = [
    "Bearer {c}",
    "Bearer {c}",
    "Bearer {c}",
    "Bearer site:{s}:{c}",
    "Bearer site:{S}:{c}",
    "Bearer ci:{n}:{c}",
    "Bearer pat:{n}:{c}",
    "Bearer ci:0{n}:{c}",
    "Bearer ci:-{n}:{c}",
    "Bearer plrl:{n}:{c}",
    "bearer {c}",
    "Basic {c}",
    "Bearer  {c}",
    "Bearer site:lab:site:{s}:{c}",
];

/// Words that could be taken for somebody else's.
const HEADERS: [&str; 16] = [
    "",
    "",
    "",
    "impersonate-user: ann-of-vault\r\n",
    "impersonate-user: system:admin\r\nimpersonate-group: system:masters\r\n",
    "tarbet-caller: admin\r\n",
    "tarbet-target: site/{s}/kubernetes\r\n",
    "tarbet-target: via/00000000-0000-0000-0000-000000000000/kubernetes\r\n",
    "tarbet-site: {s}\r\n",
    "gitlab-agent-id: {n}\r\n",
    "gitlab-agent-id: {n}\r\nx-csrf-token: x\r\ncookie: _gitlab_kas=x\r\n",
    "x-forwarded-user: admin\r\nx-remote-user: admin\r\n",
    "x-original-url: /sites/{s}/version\r\nx-rewrite-url: /sites/{s}/version\r\n",
    "x-http-method-override: GET\r\n",
    "forwarded: for=127.0.0.1;host={s}\r\n",
    "traceparent: 00-{r}-00f067aa0ba902b7-01\r\n",
];

const BODIES: [&str; 7] = [
    "",
    "",
    r#"{"name": "{s}"}"#,
    r#"{"name": "{u}", "roles": {"{s}": "operator"}}"#,
    r#"{"name": "caller-2", "admin": true}"#,
    r#"{"expiresInSeconds": 60}"#,
    r#"{"site": "{s}", "token": "{t}"}"#,
];

/// A small generator, so that a seed means the same everywhere.
struct Dice(u64);

impl Dice {
    fn below(&mut self, count: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % count as u64) as usize
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// So many attempts, the same for the same seed.
pub(super) fn generate(seed: u64, count: usize, callers: usize) -> Vec<Attempt> {
    let mut dice = Dice(seed);
    let mut one = |_| {
        let door = dice.pick(&[Door::Api, Door::Kubernetes, Door::Kubernetes, Door::Console]);
        let path = match door {
            Door::Api => dice.pick(&API).to_owned(),
            Door::Kubernetes => dice.pick(&KUBERNETES).to_owned(),
            // The same API, behind the page.
            Door::Console => dice.pick(&API).replacen("/v1", "/api/gateway", 1),
        };
        let credential = match door {
            Door::Kubernetes => dice.pick(&CREDENTIALS),
            _ => "Bearer {c}",
        };
        let method = match dice.below(2) {
            0 => "GET",
            _ => dice.pick(&METHODS),
        };
        Attempt {
            door,
            method,
            path: path.replace("{f}", dice.pick(&FORMS)),
            credential: credential.to_owned(),
            caller: dice.below(callers),
            header: dice.pick(&HEADERS),
            body: if method == "GET" || method == "HEAD" { "" } else { dice.pick(&BODIES) },
        }
    };
    (0..count).map(&mut one).collect()
}
