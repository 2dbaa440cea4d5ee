// Audit: the newest records of who asked for what, and whether the chain is whole.

import { useState } from "preact/hooks";
import { useKnown } from "./live";
import { Command, Empty, ProblemBox, Since, State } from "./pieces";
import { Table } from "./table";
import type { Entry } from "./types";

export function Audit() {
  const { audit, gateway, problems } = useKnown();
  const [wanted, setWanted] = useState("");
  const [refused, setRefused] = useState(false);
  if (gateway && !gateway.panels.includes("audit")) {
    return (
      <>
        <h1>Audit</h1>
        <Empty title="This gateway keeps no record. Name a file for it in the configuration:">
          <Command>tarbet gateway --set gateway.audit.file=/var/lib/tarbet/audit.log</Command>
        </Empty>
      </>
    );
  }
  const shown = (audit?.entries ?? []).filter((entry) => (!refused || ill(entry)) && matches(entry, wanted.toLowerCase()));
  return (
    <>
      <header class="view">
        <h1>Audit</h1>
        {audit ? audit.chain.whole ? <State tone="good">{audit.chain.records ? `chain whole, ${audit.chain.records.toLocaleString("en")} records` : "chain whole"}</State> : <State tone="bad">the chain is broken</State> : null}
      </header>
      {problems.audit ? <ProblemBox problem={problems.audit} /> : null}
      {audit && !audit.chain.whole ? (
        <div class="problem" role="alert">
          <strong>A record was changed, added or removed.</strong> {audit.chain.why}
        </div>
      ) : null}
      {audit?.entries.length ? (
        <div class="filters">
          <input type="search" placeholder="Filter by person, site or words" aria-label="Filter records" value={wanted} onInput={(event) => setWanted(event.currentTarget.value)} />
          <label class="check">
            <input type="checkbox" checked={refused} onChange={(event) => setRefused(event.currentTarget.checked)} /> only refused and failed
          </label>
        </div>
      ) : null}
      {audit?.entries.length === 0 ? (
        <Empty title="Nothing was asked for yet. Every request and every change leaves a record here.">
          <Command>tarbet site add lab</Command>
        </Empty>
      ) : null}
      <Table
        columns={["No.", "Outcome", "Who", "Wanted", "Site", "When"]}
        rows={shown}
        row={(entry) => (
          <tr key={entry.seq}>
            <th scope="row">{entry.seq}</th>
            <td data-name="Outcome">
              <State tone={ill(entry) ? "bad" : "good"}>{entry.code ?? entry.outcome}</State>
            </td>
            <td data-name="Who">{entry.principal ?? "nobody known"}</td>
            <td data-name="Wanted" class="wants">{entry.wants}</td>
            <td data-name="Site">{entry.site ?? "–"}</td>
            <td data-name="When">
              <Since when={entry.time} />
            </td>
          </tr>
        )}
      />
      {audit ? <Command>{`tarbet audit verify ${audit.file}`}</Command> : null}
    </>
  );
}

const ill = ({ outcome }: Entry) => outcome === "refused" || outcome === "failed";

const matches = (entry: Entry, wanted: string) =>
  !wanted || [entry.principal, entry.site, entry.wants, entry.outcome, entry.code].some((text) => text?.toLowerCase().includes(wanted));
