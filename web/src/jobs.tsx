// Jobs: requests for private pipelines, as the cluster's own objects tell them.

import { cancelRequest, unlockedAs } from "./actions";
import { useDeeds } from "./deeds";
import { useKnown } from "./live";
import { Away, Command, Empty, ProblemBox, Since, State, type Tone, UnlockTo, plain, upWithCluster } from "./pieces";
import { Table } from "./table";
import type { Job } from "./types";

// A request that is still at it says `False`, as the original's do; its reason tells.
const under = (job: Job) => !job.reason || job.reason === "Running";
const tone = (job: Job): Tone => (under(job) ? "wait" : job.status === "True" ? "good" : "bad");

export function Jobs({ onUnlock }: { onUnlock: () => void }) {
  const { jobs, gateway, problems } = useKnown();
  const { ask, dialog, refusal } = useDeeds();
  const served = gateway?.panels.includes("jobs");
  const cancel = (job: Job) =>
    ask({
      title: `Cancel ${job.name}?`,
      text: "Its run is ended, and both the run and the request are deleted.",
      verb: "Cancel the request",
      deed: () => cancelRequest(job.namespace, job.name),
    });
  const row = (job: Job) => (
    <tr key={`${job.namespace}/${job.name}`}>
      <th scope="row">{job.name}</th>
      <td data-name="State">
        <State tone={tone(job)}>{job.reason ?? "waiting"}</State>
      </td>
      <td data-name="Namespace">{job.namespace}</td>
      <td data-name="Pipeline">{job.wants ?? "–"}</td>
      <td data-name="Outcome" class="wants">
        <Outcome job={job} />
      </td>
      <td data-name="When">
        <Since when={job.created} />
        {under(job) && unlockedAs() ? (
          <>
            {" "}
            <button type="button" onClick={() => cancel(job)} aria-label={`Cancel ${job.name}`}>
              Cancel
            </button>
          </>
        ) : null}
      </td>
    </tr>
  );
  return (
    <>
      <header class="view">
        <h1>Jobs</h1>
        <span class="dim">{plain(gateway?.parts["jobs"])}</span>
      </header>
      {problems.jobs ? <ProblemBox problem={problems.jobs} /> : <Away away={jobs?.away} />}
      {refusal}
      {gateway && !served ? (
        <Empty title="No cluster is served from here. Private pipelines on request need one:">
          <Command>{upWithCluster(gateway)}</Command>
        </Empty>
      ) : null}
      {served && jobs?.requests.length === 0 && !jobs.away.length ? (
        <Empty title="Nobody asked for anything yet.">
          <Command>tarbet request submit greet -p who=world --wait</Command>
        </Empty>
      ) : null}
      <Table columns={["Request", "State", "Namespace", "Pipeline", "Outcome", "When"]} rows={jobs?.requests ?? []} row={row} />
      {jobs && jobs.total > jobs.requests.length ? (
        <p class="dim">
          {jobs.requests.length} of {jobs.total} requests are shown, the newest of those that were read. All of them: <code>tarbet request list</code>
        </p>
      ) : null}
      {jobs?.requests.some(under) && !unlockedAs() ? (
        <UnlockTo onUnlock={onUnlock}>cancel a request</UnlockTo>
      ) : null}
      {dialog}
    </>
  );
}

/** Results if there are any, else why not, and the run. */
function Outcome({ job }: { job: Job }) {
  const results = Object.entries(job.results ?? {});
  return (
    <>
      {results.length
        ? results.map(([name, value]) => (
            <span key={name} class="chip">
              {name}={value}
            </span>
          ))
        : job.message || (job.run ? "" : "–")}
      {job.run ? (
        <>
          {results.length || job.message ? <br /> : null}
          <code class="dim">{job.run}</code>
        </>
      ) : null}
    </>
  );
}
