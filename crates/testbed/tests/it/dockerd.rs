//! Docker runs containers of local images and takes them along when it goes.

use tarbet_testbed::Dockerd;

#[tokio::test]
async fn a_container_exits_with_its_own_code() {
    let mut dockerd = Dockerd::start().await.unwrap();
    dockerd.shell_image("shell:1").await.unwrap();
    let word = ["run", "--name", "seven", "--network", "none", "shell:1", "sh", "-c", "echo hi; exit 7"];
    assert!(dockerd.docker(&word).await.is_err(), "the code is not 0");
    assert_eq!(dockerd.docker(&["logs", "seven"]).await.unwrap(), "hi");
    assert_eq!(dockerd.docker(&["inspect", "--format", "{{.State.ExitCode}}", "seven"]).await.unwrap(), "7");
    dockerd.kill9().unwrap();
    dockerd.restart().await.unwrap();
    assert_eq!(dockerd.docker(&["inspect", "--format", "{{.State.ExitCode}}", "seven"]).await.unwrap(), "7");
}
