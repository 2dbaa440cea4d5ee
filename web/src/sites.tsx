// Every site with its links.

import { useState } from "preact/hooks";
import { useKnown } from "./live";
import { Command, Empty, ProblemBox, Since, State } from "./pieces";
import { Table } from "./table";
import { RoundTrip } from "./vitals";
import type { Site } from "./types";

export function Sites() {
  const { sites, problems } = useKnown();
  const [wanted, setWanted] = useState("");
  const found = (sites ?? []).filter((site) => matches(site, wanted.trim().toLowerCase()));
  return (
    <>
      <header class="view">
        <h1>Sites</h1>
        {sites?.length ? (
          <input type="search" placeholder="Filter by name, agent, gateway, service" aria-label="Filter sites" value={wanted} onInput={(event) => setWanted(event.currentTarget.value)} />
        ) : null}
      </header>
      {problems.sites ? <ProblemBox problem={problems.sites} /> : null}
      {sites?.length === 0 ? (
        <Empty title="No site yet. A site is a place that dials in: a cluster, a login node, a machine.">
          <Command>tarbet site add lab</Command>
        </Empty>
      ) : null}
      <Table columns={["Site", "State", "Round trip", "Gateway", "Agent", "Services", "Since"]} rows={found} row={(site) => <Row key={site.name} site={site} />} />
      {sites?.length && !found.length ? <Empty title={`No site matches “${wanted}”.`}>{null}</Empty> : null}
    </>
  );
}

function matches(site: Site, wanted: string): boolean {
  const words = [site.name, ...site.links.flatMap((link) => [link.agent, link.gateway, ...link.services])];
  return words.some((word) => word.toLowerCase().includes(wanted));
}

const each = (values: string[]) => [...new Set(values)].join(", ") || "–";

function Row({ site }: { site: Site }) {
  const oldest = site.links.map((link) => link.since).sort()[0];
  return (
    <tr>
      <th scope="row">
        <a href={`#/sites/${encodeURIComponent(site.name)}`}>{site.name}</a>
      </th>
      <td data-name="State">
        {site.connected ? (
          <State tone="good">{site.links.length === 1 ? "1 link" : `${site.links.length} links`}</State>
        ) : (
          <State tone="wait">not connected</State>
        )}
      </td>
      <td data-name="Round trip">
        <RoundTrip links={site.links} />
      </td>
      <td data-name="Gateway">{each(site.links.map((link) => link.gateway))}</td>
      <td data-name="Agent">{each(site.links.map((link) => link.agent))}</td>
      <td data-name="Services">
        <Services names={site.links.flatMap((link) => link.services)} />
      </td>
      <td data-name="Since">{oldest ? <Since when={oldest} /> : "–"}</td>
    </tr>
  );
}

export function Services({ names }: { names: string[] }) {
  const each = [...new Set(names)];
  return each.length ? (
    <>
      {each.map((name) => (
        <span key={name} class="chip">{name}</span>
      ))}
    </>
  ) : (
    <>–</>
  );
}
