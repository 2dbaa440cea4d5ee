//! Images: there, pulled, or an honest word why not.

use bollard::Docker as Api;
use bollard::errors::Error;
use bollard::query_parameters::CreateImageOptions;
use futures::TryStreamExt;

use super::engine::status;
use super::status::Waiting;
use crate::plan::{Container, Pull};

/// Makes sure that the image of a container is there and may be run as asked.
pub(super) async fn ensure(api: &Api, container: &Container, pull: Pull) -> Result<(), Waiting> {
    let image = name(&container.image);
    let mut found = api.inspect_image(image).await;
    if let Err(error) = &found {
        match status(error) {
            Some(404) => {}
            Some(400) => return Err(waiting("InvalidImageName", image, &words(error))),
            _ => return Err(waiting("ImageInspectError", image, &words(error))),
        }
    }
    match (pull, &found) {
        (Pull::Never, Err(_)) => {
            return Err(waiting("ErrImageNeverPull", image, "it is not present and must not be pulled"));
        }
        (Pull::Always, _) | (Pull::IfNotPresent, Err(_)) => {
            self::pull(api, image).await?;
            found = api.inspect_image(image).await;
        }
        (Pull::Never | Pull::IfNotPresent, Ok(_)) => {}
    }
    let found = found.map_err(|error| waiting("ErrImagePull", image, &words(&error)))?;
    if container.security.non_root && container.security.user.unwrap_or_default() == 0 {
        let user = found.config.and_then(|config| config.user).unwrap_or_default();
        let named = user.split(':').next().unwrap_or_default();
        if container.security.user == Some(0) || matches!(named, "" | "0" | "root") {
            let text = "it would run as root, which runAsNonRoot forbids";
            return Err(waiting("CreateContainerConfigError", image, text));
        }
    }
    Ok(())
}

async fn pull(api: &Api, image: &str) -> Result<(), Waiting> {
    let (from, tag) = reference(image);
    let options = CreateImageOptions {
        from_image: Some(from.to_owned()),
        tag: tag.map(str::to_owned),
        ..Default::default()
    };
    let progress = api.create_image(Some(options), None, None).try_collect::<Vec<_>>().await;
    let progress = progress.map_err(|error| waiting("ErrImagePull", image, &words(&error)))?;
    match progress.into_iter().find_map(|step| step.error_detail) {
        Some(error) => Err(waiting("ErrImagePull", image, &error.message.unwrap_or_default())),
        None => Ok(()),
    }
}

/// An image as Docker knows it; pods that also run elsewhere may say where it comes from.
pub(super) fn name(image: &str) -> &str {
    image.strip_prefix("docker://").unwrap_or(image)
}

/// The name and the tag to ask for. Without a tag Docker would pull all of them.
fn reference(image: &str) -> (&str, Option<&str>) {
    if image.contains('@') {
        return (image, None);
    }
    match image.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (image, Some("latest")),
    }
}

fn words(error: &Error) -> String {
    match error {
        Error::DockerResponseServerError { message, .. } => message.clone(),
        Error::DockerStreamError { error } => error.clone(),
        other => tarbet_telemetry::problem::chain(other),
    }
}

fn waiting(reason: &'static str, image: &str, why: &str) -> Waiting {
    Waiting { reason, message: format!("image {image}: {why}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_of_other_runtimes_is_taken_off() {
        assert_eq!(name("docker://busybox:1.36"), "busybox:1.36");
        assert_eq!(name("host:5000/a/b"), "host:5000/a/b");
    }

    #[test]
    fn tags_are_told_from_ports() {
        assert_eq!(reference("busybox"), ("busybox", Some("latest")));
        assert_eq!(reference("busybox:1.35"), ("busybox", Some("1.35")));
        assert_eq!(reference("host:5000/a/b"), ("host:5000/a/b", Some("latest")));
        assert_eq!(reference("host:5000/a/b:2"), ("host:5000/a/b", Some("2")));
        assert_eq!(reference("a@sha256:00"), ("a@sha256:00", None));
    }
}
