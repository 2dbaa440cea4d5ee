// Pods: what runs behind interLink, with the end of each log; virtual nodes where a cluster is served.

import { useEffect, useRef, useState } from "preact/hooks";
import { Refused, text } from "./actions";
import { useKnown } from "./live";
import { Away, Command, Empty, ProblemBox, State, type Tone, upWithCluster } from "./pieces";
import type { Container, NodeList, Pod, Problem } from "./types";

const tones: Record<Container["state"], Tone> = { running: "good", ended: "plain", failed: "bad", waiting: "wait", unknown: "wait" };

export function Pods({ uid }: { uid: string | undefined }) {
  const { pods, nodes, gateway, problems } = useKnown();
  const chosen = pods?.pods.find((pod) => pod.uid === uid);
  if (gateway && !gateway.panels.includes("pods")) {
    return (
      <>
        <h1>Pods</h1>
        {problems.nodes ? <ProblemBox problem={problems.nodes} /> : null}
        {nodes ? <Nodes {...nodes} /> : null}
        <Empty title="No pods are run from this process. Start an API server and a plugin, or everything together:">
          <Command>tarbet plugin docker</Command>
          <p class="dim">and</p>
          <Command>tarbet interlink</Command>
        </Empty>
      </>
    );
  }
  return (
    <>
      <header class="view">
        <h1>Pods</h1>
        {pods ? pods.runtime === "ok" ? <State tone="good">{gateway?.parts["pods"]?.split("  ")[1] ?? "ready"}</State> : <State tone="bad">{pods.runtime}</State> : null}
      </header>
      {problems.pods ? <ProblemBox problem={problems.pods} /> : null}
      {problems.nodes ? <ProblemBox problem={problems.nodes} /> : null}
      {nodes ? <Nodes {...nodes} /> : null}
      {pods?.pods.length === 0 ? (
        <Empty title="No pod runs here. Try one:">
          <Command>tarbet pods run --detach busybox -- echo hello</Command>
          <p class="dim">Kubernetes sends pods here once it has a virtual node:</p>
          <Command>{upWithCluster(gateway)}</Command>
        </Empty>
      ) : null}
      {pods?.pods.length ? (
        <div class="scroll">
          <table class="cards">
            <thead>
              <tr>
                {["Pod", "State", "Namespace", "Containers", "Job"].map((name) => (
                  <th key={name} scope="col">{name}</th>
                ))}
              </tr>
            </thead>
            <tbody>
              {pods.pods.map((pod) => (
                <Row key={pod.uid} pod={pod} chosen={pod.uid === uid} />
              ))}
            </tbody>
          </table>
        </div>
      ) : null}
      {chosen ? <Log key={chosen.uid} pod={chosen} /> : null}
      {uid && pods && !chosen ? <Empty title="This pod is gone.">{null}</Empty> : null}
    </>
  );
}

/** The state of the whole: the worst of its containers. */
function whole(pod: Pod): Container["state"] {
  const order: Container["state"][] = ["failed", "waiting", "running", "unknown", "ended"];
  return order.find((state) => pod.containers.some((container) => container.state === state)) ?? "unknown";
}

function Row({ pod, chosen }: { pod: Pod; chosen: boolean }) {
  const state = whole(pod);
  return (
    <tr aria-selected={chosen}>
      <th scope="row">
        <a href={chosen ? "#/pods" : `#/pods/${pod.uid}`}>{pod.name || pod.uid}</a>
      </th>
      <td data-name="State">
        <State tone={tones[state]}>{state}</State>
      </td>
      <td data-name="Namespace">{pod.namespace}</td>
      <td data-name="Containers">
        {pod.containers.map((container) => (
          <span key={container.name} class="chip" title={container.image}>
            {container.name}
            {container.detail ? `: ${container.detail}` : ""}
          </span>
        ))}
      </td>
      <td data-name="Job">{pod.job ? <code>{pod.job.slice(0, 16)}</code> : "–"}</td>
    </tr>
  );
}

function Log({ pod }: { pod: Pod }) {
  const [container, setContainer] = useState(pod.containers[0]?.name ?? "");
  const [log, setLog] = useState<string>();
  const [problem, setProblem] = useState<Problem>();
  const end = useRef<HTMLPreElement>(null);
  const running = pod.containers.some((one) => one.state === "running");
  useEffect(() => {
    let gone = false;
    const load = async () => {
      try {
        const query = new URLSearchParams({ container, name: pod.name });
        const read = await text(`pods/logs/${encodeURIComponent(pod.namespace)}/${encodeURIComponent(pod.uid)}?${query}`);
        if (gone) return;
        const below = end.current ? end.current.scrollHeight - end.current.scrollTop - end.current.clientHeight < 30 : true;
        setLog(read);
        setProblem(undefined);
        if (below) requestAnimationFrame(() => end.current?.scrollTo(0, end.current.scrollHeight));
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        if (!gone) setProblem(error.problem);
      }
    };
    void load();
    const timer = running ? setInterval(() => void load(), 1500) : undefined;
    return () => {
      gone = true;
      clearInterval(timer);
    };
  }, [pod.uid, container, running]);
  return (
    <section aria-labelledby="log">
      <h2 id="log">Log of {pod.name}</h2>
      {pod.containers.length > 1 ? (
        <label class="pick">
          Container{" "}
          <select value={container} onChange={(event) => setContainer(event.currentTarget.value)}>
            {pod.containers.map((one) => (
              <option key={one.name}>{one.name}</option>
            ))}
          </select>
        </label>
      ) : null}
      {problem ? <ProblemBox problem={problem} /> : null}
      <pre class="log" ref={end} tabIndex={0} aria-label={`Log of ${pod.name}`}>
        {log === undefined ? "" : log || "(nothing was written)"}
      </pre>
      <Command>{`tarbet pods logs ${pod.uid.slice(0, 8)} --follow`}</Command>
    </section>
  );
}

function Nodes({ nodes, away }: NodeList) {
  return (
    <section aria-labelledby="nodes">
      <h2 id="nodes">Virtual nodes</h2>
      <Away away={away} />
      {nodes.length === 0 && !away.length ? <p class="dim">The cluster has none.</p> : null}
      <ul class="list nodes">
        {nodes.map((node) => (
          <li key={node.name}>
            <State tone={node.ready ? "good" : "bad"}>{node.ready ? "ready" : "not ready"}</State>
            <strong>{node.name}</strong>
            <span class="dim">{node.ready ? `${node.capacity["cpu"] ?? "?"} cores, ${node.capacity["memory"] ?? "?"}` : node.reason}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}
