// Every error code: what it means, why it happens, what to try.

import { useEffect, useRef, useState } from "preact/hooks";
import { useKnown } from "./live";
import { Empty } from "./pieces";
import type { Code } from "./types";

const ranges: [string, string][] = [
  ["TB-0", "All roles"],
  ["TB-1", "Reach: sites, links, requests"],
  ["TB-2", "Jobs"],
  ["TB-3", "Pods"],
  ["TB-4", "Nets"],
  ["TB-5", "Mesh"],
];

const whose = { caller: "the caller's", upstream: "another part's", ours: "Tarbet's own" };

export function Codes({ chosen }: { chosen: string | undefined }) {
  const { codes } = useKnown();
  const [wanted, setWanted] = useState("");
  const words = wanted.trim().toLowerCase();
  const found = (codes ?? []).filter((code) => `${code.code} ${code.title} ${code.cause}`.toLowerCase().includes(words));
  return (
    <>
      <header class="view">
        <h1>Error codes</h1>
        <input type="search" placeholder="TB-1102, or a word" aria-label="Find a code" value={wanted} onInput={(event) => setWanted(event.currentTarget.value)} />
      </header>
      {codes && !found.length ? <Empty title={`No code matches “${wanted}”.`}>{null}</Empty> : null}
      {ranges.map(([prefix, name]) => {
        const rows = found.filter((code) => code.code.startsWith(prefix));
        return rows.length ? (
          <section key={prefix}>
            <h2>{name}</h2>
            {rows.map((code) => (
              <Entry key={code.code} code={code} open={code.code === chosen} />
            ))}
          </section>
        ) : null;
      })}
    </>
  );
}

function Entry({ code, open }: { code: Code; open: boolean }) {
  const element = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    if (open) element.current?.scrollIntoView({ block: "center" });
  }, [open]);
  return (
    <details class="code" id={code.code} open={open} ref={element}>
      <summary>
        <code>{code.code}</code> {code.title}
      </summary>
      <dl>
        <dt>where</dt>
        <dd>{code.hop}</dd>
        <dt>why</dt>
        <dd>{code.cause}</dd>
        <dt>try</dt>
        <dd>{code.try}</dd>
        <dt>whose</dt>
        <dd>
          {whose[code.whose]} doing; {code.retry ? "the same request may succeed later" : "repeating it does not help"}; HTTP {code.http}
        </dd>
      </dl>
      {code.page.split("\n\n").map((text) => (
        <p key={text}>{text}</p>
      ))}
    </details>
  );
}
