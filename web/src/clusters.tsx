// What a cluster's own objects say: requests for private pipelines, and the federation of meshes.

import { useKnown } from "./live";
import { Command, Empty, ProblemBox, Since, State, type Tone } from "./pieces";
import type { Federation, Job } from "./types";

const tone = (job: Job): Tone => (job.status === "True" ? "good" : job.status === "False" ? "bad" : "wait");

export function Jobs() {
  const { jobs, gateway, problems } = useKnown();
  const served = gateway?.panels.includes("jobs");
  return (
    <>
      <header class="view">
        <h1>Jobs</h1>
        <span class="dim">{gateway?.parts["jobs"] ?? ""}</span>
      </header>
      {problems.jobs ? <ProblemBox problem={problems.jobs} /> : null}
      {gateway && !served ? (
        <Empty title="No cluster is served from here. Private pipelines on request need one:">
          <Command>tarbet up --kubeconfig ~/.kube/config</Command>
        </Empty>
      ) : null}
      {served && jobs?.length === 0 ? (
        <Empty title="Nobody asked for anything yet.">
          <Command>tarbet request submit greet -p who=world --wait</Command>
        </Empty>
      ) : null}
      {jobs?.length ? (
        <div class="scroll">
          <table class="cards">
            <thead>
              <tr>
                {["Request", "State", "Namespace", "Pipeline", "Why", "When"].map((name) => (
                  <th key={name} scope="col">{name}</th>
                ))}
              </tr>
            </thead>
            <tbody>
              {jobs.map((job) => (
                <tr key={`${job.namespace}/${job.name}`}>
                  <th scope="row">{job.name}</th>
                  <td data-name="State">
                    <State tone={tone(job)}>{job.reason ?? "waiting"}</State>
                  </td>
                  <td data-name="Namespace">{job.namespace}</td>
                  <td data-name="Pipeline">{job.wants ?? "–"}</td>
                  <td data-name="Why" class="wants">{job.message ?? "–"}</td>
                  <td data-name="When">
                    <Since when={job.created} />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : null}
    </>
  );
}

export function Meshes() {
  const { federation, gateway, problems } = useKnown();
  const served = gateway?.panels.includes("federation");
  return (
    <>
      <header class="view">
        <h1>Federation</h1>
        <span class="dim">{gateway?.parts["mesh"] ?? ""}</span>
      </header>
      {problems.federation ? <ProblemBox problem={problems.federation} /> : null}
      {gateway && !served ? (
        <Empty title="No mesh is served from here. Services across meshes need a cluster with Istio:">
          <Command>tarbet up --kubeconfig ~/.kube/config</Command>
          <p class="dim">or in the cluster itself</p>
          <Command>tarbet mesh</Command>
        </Empty>
      ) : null}
      {served && federation?.length === 0 ? (
        <Empty title="Nothing is federated: the cluster has no MeshFederation. What would be written can be seen first:">
          <Command>tarbet mesh render -f federation/</Command>
        </Empty>
      ) : null}
      {federation?.map((one) => <Mesh key={`${one.namespace}/${one.name}`} one={one} />)}
    </>
  );
}

function Mesh({ one }: { one: Federation }) {
  const remotes = one.spec.remotes ?? [];
  const conflicts = (one.conditions ?? []).filter((condition) => condition.status !== "True");
  return (
    <section aria-labelledby={`mesh-${one.name}`}>
      <h2 id={`mesh-${one.name}`}>
        {one.name} <span class="dim">in {one.namespace}</span>
      </h2>
      <ul class="list">
        {(one.conditions ?? []).map((condition) => (
          <li key={condition.type}>
            <State tone={condition.status === "True" ? "good" : "wait"}>{condition.type}</State>
            <span>{condition.message || condition.reason || "–"}</span>
          </li>
        ))}
      </ul>
      <h3>Remotes</h3>
      {remotes.length === 0 ? <p class="dim">none</p> : null}
      <p>
        {remotes.map((remote) => (
          <span key={remote.name} class="chip">{remote.name}</span>
        ))}
      </p>
      {conflicts.length ? <p class="dim">{conflicts.length} conditions are not met.</p> : null}
      <Command>tarbet mesh status</Command>
    </section>
  );
}
