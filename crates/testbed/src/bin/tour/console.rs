//! The console, once everything has happened: all five capabilities on one page.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;
use tarbet_testbed::eventually;

use crate::pods;
use crate::reach::Scene;
use crate::steps::{Tour, chapter};

const SOON: Duration = Duration::from_mins(1);

/// What is counted on the page: a panel, where in it, and what that is to a person.
const COUNTED: [(&str, &str, &str); 8] = [
    ("sites", "", "sites"),
    ("requests", "", "requests through the gateway"),
    ("jobs", "/requests", "requests for pipelines"),
    ("nodes", "/nodes", "virtual nodes"),
    ("pods", "/pods", "pods"),
    ("nets", "/resources", "machines in clouds"),
    ("federation", "/imported", "services of another mesh"),
    ("audit", "/entries", "records of who asked for what"),
];

pub(crate) async fn walk(tour: &mut Tour, scene: &Scene) -> Result<()> {
    chapter("The console: all of it on one page");
    tour.step(
        "What just happened, in all five capabilities, and a pod that runs while you look",
        &format!("kubectl apply -f pod.yaml\nopen {}", scene.gateway.console()),
        async {
            pods::run(&scene.plane.kubectl()).await?;
            let mut told = Vec::new();
            for (panel, place, what) in COUNTED {
                let path = format!("/api/{panel}");
                let count = eventually(SOON, what, || async {
                    let page: Value = serde_json::from_str(&scene.gateway.console_page(&path).await?)?;
                    let count = page.pointer(place).and_then(Value::as_array).map_or(0, Vec::len);
                    ensure!(count > 0, "{page}");
                    Ok(count)
                })
                .await?;
                told.push(format!("{what}: {count}"));
            }
            Ok(((), told.join("\n")))
        },
    )
    .await
}
