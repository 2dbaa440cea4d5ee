//! Every token, key and secret is replaced while people use it, and nobody notices. Certificates have their own file.

use tokio::sync::RwLock;

use super::*;

/// Who callers are: both gateways with the token of the moment.
pub(super) type Ways = Arc<RwLock<[Client; 2]>>;

/// Asks these sites in turn, again and again, at either gateway first, as behind a load balancer.
pub(super) async fn ask(ways: Ways, sites: &'static [&'static str], tally: Arc<Tally>, offset: usize) {
    for turn in offset.. {
        if tally.over.load(SeqCst) {
            return;
        }
        let [first, second] = {
            let clients = ways.read().await;
            let site = sites[turn / 2 % sites.len()];
            [&clients[turn % 2], &clients[1 - turn % 2]].map(|client| client.site(site.parse().unwrap()))
        };
        let mut answer = name(&first).await;
        if answer.is_err() {
            answer = name(&second).await;
        }
        tally.asked.fetch_add(1, SeqCst);
        if let Err(error) = answer {
            eprintln!("failed at both gateways: {error:?}");
            tally.failed.fetch_add(1, SeqCst);
        }
    }
}

impl Tally {
    /// Many more were answered since, and all of them.
    pub(crate) async fn unnoticed(&self, step: &str) {
        let goal = self.asked.load(SeqCst) + 100;
        eventually(SOON, step, || std::future::ready(self.asked.load(SeqCst) >= goal)).await.unwrap();
        assert_eq!(self.failed.load(SeqCst), 0, "after {step}");
    }

    /// Tells how many asked, once all of them have ended: every one was answered.
    pub(crate) fn verified(&self, promise: &str) {
        assert_eq!(self.failed.load(SeqCst), 0, "{promise}");
        verified(promise, self.asked.load(SeqCst));
    }
}

impl World {
    /// A caller with a token of its own.
    async fn caller(&self, who: &str, gateways: &[Gateway; 2]) -> [Client; 2] {
        let token = self
            .product
            .run(&gateways[0], &["user", "add", who, "--role", "user", "--site", "lab"])
            .await
            .unwrap();
        let token = token.lines().find(|line| line.starts_with("tbu_")).unwrap().trim().to_owned();
        gateways.each_ref().map(|gateway| {
            Client::new(&gateway.api(), Secret::from(token.clone()), Some(&self.product.authority())).unwrap()
        })
    }
}

pub(super) async fn links_at(gateway: &Gateway, least: u64) {
    let held = || async { gauge(gateway, "tarbet_links ").await.is_some_and(|links| links >= least) };
    eventually(SOON, "agents to hold links to the gateway", held).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_secret_is_replaced_under_load_and_no_request_fails() {
    let world = World::new().await;
    let password = world.product.folder().write("redis.password", "first").unwrap();
    world.redis.command(&["ACL", "SETUSER", "gateways", "on", ">first", "~*", "&*", "+@all"]).await.unwrap();
    let file = format!("store.password_file={}", password.display());
    let guarded = ["--set", "store.username=gateways", "--set", &file];
    let mut gateways = [world.gateway("one", &guarded).await, world.gateway("two", &guarded).await];
    let first_token = world.add_site("lab", &gateways[0]).await;
    let replica = async |name: &str, token: &str| {
        let both = [&gateways[0], &gateways[1]];
        world.product.agent(name, token, &both, &[]).await.unwrap()
    };
    let mut replicas = [replica("lab-a", &first_token).await, replica("lab-b", &first_token).await];
    for gateway in &gateways {
        links_at(gateway, 2).await;
    }
    let (tally, ways) =
        (Arc::new(Tally::default()), Arc::new(RwLock::new(world.caller("caller-1", &gateways).await)));
    let callers: Vec<_> = (0..4)
        .map(|offset| tokio::spawn(ask(Arc::clone(&ways), &["lab"], Arc::clone(&tally), offset)))
        .collect();
    let unnoticed = async |step: &str| tally.unnoticed(step).await;
    unnoticed("the start").await;

    // A caller's token.
    let retired = ways.read().await[0].clone();
    *ways.write().await = world.caller("caller-2", &gateways).await;
    unnoticed("another token for callers").await;
    world.product.run(&gateways[0], &["user", "revoke", "caller-1"]).await.unwrap();
    eventually(SOON, "the old token to be refused", || async {
        name(&retired.site("lab".parse().unwrap())).await.is_err()
    })
    .await
    .unwrap();
    unnoticed("the end of the old token").await;

    // The site's token and each agent's own key, one replica after the other.
    let said = world.product.run(&gateways[0], &["site", "tokens", "lab", "-o", "json"]).await.unwrap();
    let old = serde_json::from_str::<Value>(&said).unwrap()[0]["id"].as_str().unwrap().to_owned();
    let said = world.product.run(&gateways[0], &["site", "token", "lab", "-o", "json"]).await.unwrap();
    let fresh: Value = serde_json::from_str(&said).unwrap();
    let fresh = fresh["token"].as_str().unwrap();
    for (agent, name) in replicas.iter_mut().zip(["lab-a", "lab-b"]) {
        let token = world.product.folder().write(&format!("{name}.token"), fresh).unwrap();
        agent.process.stop().await.unwrap();
        let key = token.with_extension("token.key");
        assert!(key.exists(), "{}", key.display());
        std::fs::remove_file(key).unwrap();
        agent.process.restart().await.unwrap();
        agent.ready().await.unwrap();
        unnoticed("another token and key for an agent").await;
    }
    for gateway in &gateways {
        links_at(gateway, 2).await;
    }
    world.product.run(&gateways[0], &["site", "revoke", "lab", &old]).await.unwrap();
    unnoticed("the end of the site's old token").await;

    // The password of the store: both count for a while, and then connections with the old one end.
    world.redis.command(&["ACL", "SETUSER", "gateways", ">second"]).await.unwrap();
    std::fs::write(&password, "second").unwrap();
    world.redis.command(&["ACL", "SETUSER", "gateways", "<first"]).await.unwrap();
    let ended = world.redis.command(&["CLIENT", "KILL", "USER", "gateways"]).await.unwrap();
    assert!(ended.trim().parse::<u32>().unwrap() >= 2, "no connection of a gateway was ended: {ended}");
    unnoticed("another password of the store").await;
    world.product.run(&gateways[0], &["site", "tokens", "lab"]).await.unwrap();

    // The first administrator's token. Until the gateways start with the new one another administrator is there.
    let retired = std::fs::read_to_string(world.product.admin_token()).unwrap();
    let meanwhile = world.product.run(&gateways[0], &["user", "add", "meanwhile", "--admin"]).await.unwrap();
    let meanwhile = world.product.folder().write("meanwhile.token", &meanwhile).unwrap();
    world.product.run_as(&gateways[0], &meanwhile, &["user", "revoke", "admin"]).await.unwrap();
    let (code, made) = world.product.command(&["user", "generate"]).await.unwrap();
    assert_eq!(code, Some(0), "{made}");
    std::fs::write(world.product.admin_token(), made).unwrap();

    // The secret among gateways, and with it new certificates of their listeners.
    world
        .product
        .folder()
        .write("gateways.secret", "YW5vdGhlci1zZWNyZXQtb2YtMzItYnl0ZXMtMDEyMzQ=\n")
        .unwrap();
    for gateway in &mut gateways {
        gateway.process.stop().await.unwrap();
        gateway.process.restart().await.unwrap();
        gateway.ready().await.unwrap();
        links_at(gateway, 2).await;
        unnoticed("another secret at a gateway").await;
    }
    world.product.run(&gateways[0], &["user", "revoke", "meanwhile"]).await.unwrap();
    for gone in [retired, std::fs::read_to_string(&meanwhile).unwrap()] {
        let file = world.product.folder().write("gone.token", &gone).unwrap();
        let refused = world.product.run_as(&gateways[1], &file, &["user", "list"]).await.unwrap_err();
        assert!(refused.to_string().contains("TB-1"), "{refused:#}");
    }
    unnoticed("another administrator").await;
    tally.over.store(true, SeqCst);
    for caller in callers {
        caller.await.unwrap();
    }
    tally.verified("requests while tokens, keys and secrets are replaced, none lost");
}
