//! A small request across a link in memory: framing and scheduling at both ends, without sockets.

use std::sync::Arc;

use anyhow::{Context, Result};
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::BodyExt;
use tarbet_link::{
    Accepted, AgentInfo, Body, ByteStream, Credential, Denial, Handler, Hello, IncomingCall, Purpose,
    Settings, Versions,
};
use uuid::Uuid;

struct Greeter;

impl Handler for Greeter {
    fn call(&self, _: IncomingCall) -> BoxFuture<'_, Result<Response<Body>, Denial>> {
        async { Ok(Response::new(Body::from("hello"))) }.boxed()
    }
}

pub(super) fn request() -> Result<Box<dyn FnMut()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let link = runtime.block_on(async {
        let (near, far) = tokio::io::duplex(256 * 1024);
        let settings = Settings::default();
        let yes = |_| async {
            Ok(Accepted { link: Uuid::nil(), gateway: "gateway".into(), settings: Settings::default() })
        };
        let gateway = tarbet_link::accept(ByteStream::new(near), settings.handshake_timeout, yes);
        let agent = async {
            let (link, driver) =
                tarbet_link::connect(ByteStream::new(far), hello(), Settings::default(), Arc::new(Greeter))
                    .await
                    .context("the agent's end")?;
            tokio::spawn(driver);
            anyhow::Ok(link)
        };
        let (gateway, agent) = tokio::join!(
            async {
                let (link, driver) = gateway.await.context("the gateway's end")?;
                tokio::spawn(driver);
                anyhow::Ok(link)
            },
            agent
        );
        anyhow::Ok((gateway?, agent?))
    })?;
    Ok(Box::new(move || {
        let answer = runtime.block_on(async {
            let request = Request::get("http://site/").body(Body::empty()).ok()?;
            let response = link.0.call(request).await.ok()?;
            response.into_body().collect().await.ok()
        });
        assert!(answer.is_some_and(|body| body.to_bytes() == "hello"), "the greeting");
    }))
}

fn hello() -> Hello {
    Hello {
        versions: Versions { lowest: 1, highest: 1 },
        credential: Credential::new("token"),
        agent: AgentInfo {
            name: "agent".into(),
            version: "0".into(),
            instance: Uuid::nil(),
            connection: Uuid::nil(),
            services: vec!["info".into()],
            purpose: Purpose::General,
        },
    }
}
