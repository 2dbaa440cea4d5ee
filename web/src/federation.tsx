// Federation: what meshes export to and import from one another, and where names collide.

import { useKnown } from "./live";
import { Away, Command, Empty, ProblemBox, Since, State, plain, upWithCluster } from "./pieces";
import { Table } from "./table";
import type { Condition, Exports, Federation, Imported, Remote } from "./types";

export function Meshes() {
  const { federation, gateway, problems } = useKnown();
  const served = gateway?.panels.includes("federation");
  const conflicts = (federation?.imported ?? []).filter((service) => service.conflict);
  return (
    <>
      <header class="view">
        <h1>Federation</h1>
        <span class="dim">{plain(gateway?.parts["mesh"])}</span>
      </header>
      {problems.federation ? <ProblemBox problem={problems.federation} /> : <Away away={federation?.away} />}
      {gateway && !served ? (
        <Empty title="No mesh is served from here. Services across meshes need a cluster with Istio:">
          <Command>{upWithCluster(gateway)}</Command>
          <p class="dim">or in the cluster itself</p>
          <Command>tarbet mesh</Command>
        </Empty>
      ) : null}
      {served && federation?.federations.length === 0 && !federation.away.length ? (
        <Empty title="Nothing is federated: the cluster has no MeshFederation. What would be written can be seen first:">
          <Command>tarbet mesh render -f federation/</Command>
        </Empty>
      ) : null}
      {conflicts.length ? (
        <div class="problem" role="alert">
          <strong>{conflicts.length === 1 ? "One imported name collides." : `${conflicts.length} imported names collide.`}</strong>
          <ul>
            {conflicts.map((service) => (
              <li key={service.name}>{service.conflict?.includes(service.hostname) ? service.conflict : `${service.hostname}: ${service.conflict}`}</li>
            ))}
          </ul>
        </div>
      ) : null}
      {federation?.federations.map((one) => <Mesh key={`${one.namespace}/${one.name}`} one={one} />)}
      {federation?.rules.map((rules) => <ExportRules key={rules.namespace} rules={rules} />)}
      {federation?.imported.length ? <Imports services={federation.imported} /> : null}
      {federation?.federations.length ? <Command>tarbet mesh status</Command> : null}
    </>
  );
}

/** `RemotesConnected` as people write it. */
const words = (name: string) => name.replace(/(?<=[a-z])([A-Z])/g, (letter) => ` ${letter.toLowerCase()}`);

function Conditions({ conditions }: { conditions: Condition[] | null }) {
  return (
    <ul class="list conditions">
      {(conditions ?? []).map((condition) => {
        // The one condition of which it is good that it is not so.
        const good = (condition.status === "True") !== (condition.type === "Conflicted");
        const name = condition.type === "Conflicted" && good ? "No conflict" : words(condition.type);
        const reason = words(condition.reason ?? "–");
        // A reason that only says the name once more is left out.
        const said = name.toLowerCase().includes(reason.toLowerCase()) ? "" : reason;
        return (
          <li key={condition.type}>
            <State tone={good ? "good" : "wait"}>{name}</State>
            <span class="dim">{condition.message || said}</span>
          </li>
        );
      })}
    </ul>
  );
}

function Mesh({ one }: { one: Federation }) {
  const told = new Map((one.remotes ?? []).map((remote) => [remote.id, remote]));
  const silent = (one.configured ?? []).filter((remote) => !told.has(remote.id));
  const remotes: Remote[] = [...told.values(), ...silent.map(({ id }) => ({ id, connected: false, offered: 0, imported: 0 }))];
  return (
    <section aria-labelledby={`mesh-${one.name}`}>
      <h2 id={`mesh-${one.name}`}>
        {one.mesh} <span class="dim">this mesh{one.namespace ? `, declared in ${one.namespace}` : ""}</span>
      </h2>
      <Conditions conditions={one.conditions} />
      <h3>Remote meshes</h3>
      {remotes.length === 0 ? <p class="dim">none</p> : null}
      <Table
        columns={["Mesh", "State", "Offers", "Imported", "Since"]}
        rows={remotes}
        row={(remote) => (
          <tr key={remote.id}>
            <th scope="row">{remote.id}</th>
            <td data-name="State">
              {told.has(remote.id) ? remote.connected ? <State tone="good">connected</State> : <State tone="bad">{remote.error ?? "not connected"}</State> : <State tone="plain">nothing imported</State>}
            </td>
            <td data-name="Offers">{remote.offered}</td>
            <td data-name="Imported">{remote.imported}</td>
            <td data-name="Since">{remote.since ? <Since when={remote.since} /> : "–"}</td>
          </tr>
        )}
      />
    </section>
  );
}

const labels = (selector: { matchLabels?: Record<string, string> } | undefined) =>
  Object.entries(selector?.matchLabels ?? {}).map(([key, value]) => `${key}=${value}`).join(", ") || "all";

function ExportRules({ rules }: { rules: Exports }) {
  const { export: exported } = rules;
  const words = [
    ...(exported?.serviceList ?? []),
    ...(exported?.serviceSelectors ?? []).map((one) => `services with ${labels(one)}`),
    ...(exported?.namespaceSelectors ?? []).map((one) => `namespaces with ${labels(one)}`),
    ...(exported?.selectors ?? []).map((one) => `services with ${labels(one.serviceSelector)} in namespaces with ${labels(one.namespaceSelector)}`),
  ];
  return (
    <section aria-labelledby="exports">
      <h2 id="exports">
        Exports <span class="dim">{rules.exported === null ? "" : rules.exported === 1 ? "1 service" : `${rules.exported} services`}</span>
      </h2>
      <p>
        {words.length ? words.map((word) => <span key={word} class="chip">{word}</span>) : <span class="dim">Nothing is exported.</span>}
      </p>
      <Conditions conditions={rules.conditions} />
    </section>
  );
}

function Imports({ services }: { services: Imported[] }) {
  return (
    <section aria-labelledby="imports">
      <h2 id="imports">Imports</h2>
      <Table
        columns={["Called here", "State", "From", "Namespace"]}
        rows={services}
        row={(service) => (
          <tr key={`${service.namespace}/${service.name}`}>
            <th scope="row">{service.hostname}</th>
            <td data-name="State" class="wants">
              {service.conflict ? <State tone="bad">collides</State> : service.ready ? <State tone="good">ready</State> : <State tone="wait">{service.why || "not ready"}</State>}
            </td>
            <td data-name="From">
              {service.meshes.map((mesh) => (
                <span key={mesh} class="chip">{mesh}</span>
              ))}
            </td>
            <td data-name="Namespace">{service.namespace}</td>
          </tr>
        )}
      />
    </section>
  );
}
