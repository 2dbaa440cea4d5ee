//! Slurm runs jobs, tells how they ended, and forgets nothing it promised.

use std::{fs, time::Duration};

use tarbet_testbed::{Slurm, eventually};

#[tokio::test]
async fn a_job_writes_its_output_and_ends() {
    let slurm = Slurm::start().await.unwrap();
    let output = slurm.folder().join("job.out");
    let to = format!("--output={}", output.display());
    let id = slurm.run("sbatch", &["--parsable", &to, "--wrap", "echo from the job; exit 7"]).await.unwrap();
    let ended = eventually(Duration::from_mins(1), "the end of the job", || async {
        let words = ["--noheader", "--states=all", "-O", "exit_code:|,StateCompact:|", "-j", &id];
        let job = slurm.run("squeue", &words).await?;
        if job.ends_with("|F|") { Ok(job) } else { anyhow::bail!("{job}") }
    });
    // The exit code is the raw wait status.
    assert_eq!(ended.await.unwrap(), "1792|F|");
    assert_eq!(fs::read_to_string(output).unwrap(), "from the job\n");
}
