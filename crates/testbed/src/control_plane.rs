//! A whole Kubernetes control plane on loopback: etcd, apiserver, controllers, scheduler.
//!
//! RBAC is on, and each plane has its own authority and its own key for service account
//! tokens, so nobody known to one is known to the other.

mod flags;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};

use self::flags::Keys;
use crate::{
    Authority, Etcd, Folder, Issued, Kubectl, Lease, Process, Program, Subject, certs, eventually,
    kubeconfig::{self, Credential},
    tools,
};

/// Three seconds on an idle machine; far more when compilers share its cores.
const READY: Duration = Duration::from_secs(90);
/// The group that RBAC lets do everything.
const ADMINISTRATORS: &str = "system:masters";

/// A running control plane; it goes when dropped.
#[derive(Debug)]
pub struct ControlPlane {
    name: String,
    kube: PathBuf,
    // In the order they must go.
    scheduler: Process,
    controllers: Process,
    apiserver: Process,
    etcd: Arc<Etcd>,
    access: Access,
}

/// What a client of the API needs to know, with an administrator's token.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The URL of the API.
    pub server: String,
    /// The file with the certificate of the plane's authority.
    pub authority: PathBuf,
    /// A bearer token of an administrator.
    pub token: String,
}

/// The way in: where the API is, and who may say they are who.
#[derive(Debug)]
struct Access {
    authority: Authority,
    admin: Issued,
    token: String,
    lease: Lease,
    folder: Folder,
}

impl ControlPlane {
    /// Starts one with an etcd of its own and waits until it is ready: the API says so and the
    /// controllers have made the first service account.
    pub async fn start(name: &str) -> Result<Self> {
        Self::start_on(name, Arc::new(Etcd::start().await?)).await
    }

    /// Starts another one beside this, sharing only its etcd, under a name of its own.
    pub async fn beside(&self, name: &str) -> Result<Self> {
        Self::start_on(name, Arc::clone(&self.etcd)).await
    }

    pub(crate) async fn start_on(name: &str, etcd: Arc<Etcd>) -> Result<Self> {
        let kube = tools::kube().await?;
        let access = Access::new(name)?;
        let keys = Keys::write(&access.authority, &access.token, access.folder.path())?;
        let program = |part: &str| Program::new(&kube).arg(part).grace(Duration::from_secs(1));
        let folder = &access.folder;

        let args = flags::apiserver(name, &etcd.url(), access.lease.port(0), &keys);
        let mut apiserver = Process::start(folder, "apiserver", program("apiserver").args(args))?;
        let admin = Kubectl::new(&kube, access.admin_kubeconfig(), folder.path().join("discovery"));
        apiserver.ready(READY, || admin.run(&["get", "--raw", "/readyz"])).await?;

        let user = access.kubeconfig_for("system:kube-controller-manager", &[])?;
        let args = flags::controllers(&user, access.lease.port(1), &keys);
        let mut controllers =
            Process::start(folder, "controllers", program("controller-manager").args(args))?;
        let user = access.kubeconfig_for("system:kube-scheduler", &[])?;
        let args = flags::scheduler(&user, access.lease.port(2));
        let scheduler = Process::start(folder, "scheduler", program("scheduler").args(args))?;
        controllers.ready(READY, || admin.run(&["get", "serviceaccount", "default"])).await?;

        Ok(Self { name: name.to_owned(), kube, scheduler, controllers, apiserver, etcd, access })
    }

    /// Its name, which is also its prefix in etcd and the context in its kubeconfigs.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The URL of its API.
    pub fn server(&self) -> String {
        self.access.server()
    }

    /// Its authority, to issue certificates for nodes, webhooks and users.
    pub fn authority(&self) -> &Authority {
        &self.access.authority
    }

    /// The kubeconfig of an administrator (by client certificate).
    pub fn kubeconfig(&self) -> PathBuf {
        self.access.admin_kubeconfig()
    }

    /// A kubeconfig for any user. With one group or none it holds a client certificate of that
    /// user; with more, an administrator's that acts as the user, since a certificate made
    /// here has room for one group.
    pub fn kubeconfig_for(&self, user: &str, groups: &[&str]) -> Result<PathBuf> {
        self.access.kubeconfig_for(user, groups)
    }

    /// A kubeconfig that holds a token, such as one of [`ControlPlane::service_account_token`].
    pub fn kubeconfig_with_token(&self, token: &str) -> Result<PathBuf> {
        self.access.kubeconfig(&Credential::Token(token))
    }

    /// A fresh token of a service account, from the API's token request.
    pub async fn service_account_token(&self, namespace: &str, account: &str) -> Result<String> {
        self.kubectl().run(&["create", "token", account, "--namespace", namespace]).await
    }

    /// What a client needs that takes no kubeconfig.
    pub fn client_config(&self) -> ClientConfig {
        let authority = self.access.folder.path().join("ca.crt");
        ClientConfig { server: self.server(), authority, token: self.access.token.clone() }
    }

    /// kubectl as an administrator.
    pub fn kubectl(&self) -> Kubectl {
        self.kubectl_with(self.kubeconfig())
    }

    /// kubectl as any user.
    pub fn kubectl_as(&self, user: &str, groups: &[&str]) -> Result<Kubectl> {
        Ok(self.kubectl_with(self.kubeconfig_for(user, groups)?))
    }

    /// kubectl with any kubeconfig.
    pub fn kubectl_with(&self, kubeconfig: PathBuf) -> Kubectl {
        Kubectl::new(&self.kube, kubeconfig, self.access.folder.path().join("discovery"))
    }

    /// Creates a namespace that no other test has and waits until pods may be made in it.
    pub async fn unique_namespace(&self, prefix: &str) -> Result<String> {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        let namespace = format!("{prefix}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let kubectl = self.kubectl();
        kubectl.run(&["create", "namespace", &namespace]).await?;
        let account = ["get", "serviceaccount", "default", "--namespace", &namespace];
        eventually(READY, "the namespace's service account", || kubectl.run(&account)).await?;
        Ok(namespace)
    }

    /// Ends the API and starts it again on the same port, over the same objects.
    pub async fn restart_apiserver(&mut self) -> Result<()> {
        self.apiserver.restart().await?;
        let admin = self.kubectl();
        self.apiserver.ready(READY, || admin.run(&["get", "--raw", "/readyz"])).await?;
        Ok(())
    }

    /// The process of the API, to pause or kill.
    pub fn apiserver(&mut self) -> &mut Process {
        &mut self.apiserver
    }

    /// The process of the controllers, to pause or kill.
    pub fn controllers(&mut self) -> &mut Process {
        &mut self.controllers
    }

    /// The process of the scheduler, to pause or kill.
    pub fn scheduler(&mut self) -> &mut Process {
        &mut self.scheduler
    }

    /// Ends all of it in good order; dropping does the same without a runtime.
    pub async fn stop(mut self) -> Result<()> {
        self.scheduler.stop().await?;
        self.controllers.stop().await?;
        self.apiserver.stop().await
    }
}

impl Access {
    fn new(name: &str) -> Result<Self> {
        let folder = Folder::new(&format!("kube-{name}"))?;
        let authority = Authority::new(&format!("Test bed {name}"))?;
        let admin = authority.issue(&Subject::client("admin", Some(ADMINISTRATORS)))?;
        let access = Self { authority, admin, token: random_token()?, lease: Lease::block(3)?, folder };
        let Issued { certificate, key } = &access.admin;
        access.write_kubeconfig("admin", &Credential::Certificate { certificate, key })?;
        Ok(access)
    }

    fn server(&self) -> String {
        format!("https://127.0.0.1:{}", self.lease.port(0))
    }

    fn admin_kubeconfig(&self) -> PathBuf {
        self.folder.path().join("admin.kubeconfig")
    }

    fn kubeconfig_for(&self, user: &str, groups: &[&str]) -> Result<PathBuf> {
        if groups.len() > 1 {
            let Issued { certificate, key } = &self.admin;
            return self.kubeconfig(&Credential::Impersonation { certificate, key, user, groups });
        }
        let Issued { certificate, key } =
            self.authority.issue(&Subject::client(user, groups.first().copied()))?;
        self.kubeconfig(&Credential::Certificate { certificate: &certificate, key: &key })
    }

    fn kubeconfig(&self, credential: &Credential<'_>) -> Result<PathBuf> {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        self.write_kubeconfig(&format!("user-{}", COUNT.fetch_add(1, Ordering::Relaxed)), credential)
    }

    fn write_kubeconfig(&self, stem: &str, credential: &Credential<'_>) -> Result<PathBuf> {
        let text = kubeconfig::render(stem, &self.server(), self.authority.pem(), credential);
        self.folder.write(&format!("{stem}.kubeconfig"), &text)
    }
}

/// The kernel makes one for the asking, so no library has to.
fn random_token() -> Result<String> {
    let token = fs::read_to_string("/proc/sys/kernel/random/uuid").context("read a random token")?;
    Ok(token.trim().to_owned())
}

impl Keys {
    /// Writes every key, certificate and token file that the three programs read.
    fn write(authority: &Authority, token: &str, folder: &Path) -> Result<Self> {
        use crate::folder::write_private;
        let mut serving = Subject::loopback("kube-apiserver");
        let names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "10.99.0.1"];
        serving.hosts.extend(names.map(str::to_owned));
        let (signing, public) = certs::signing_key()?;
        let tokens = format!("{token},admin-by-token,admin-by-token,{ADMINISTRATORS}\n");
        Ok(Self {
            serving: authority.issue_files(&serving, folder, "apiserver")?,
            kubelet_client: authority.issue_files(
                &Subject::client("kube-apiserver-kubelet-client", Some(ADMINISTRATORS)),
                folder,
                "kubelet-client",
            )?,
            authority_key: write_private(&folder.join("ca.key"), &authority.key_pem())?,
            accounts_private: write_private(&folder.join("accounts.key"), &signing)?,
            accounts_public: write_private(&folder.join("accounts.pub"), &public)?,
            tokens: write_private(&folder.join("tokens.csv"), &tokens)?,
        })
    }
}
