// A table that becomes a stack of cards on a narrow page.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

/** Rows drawn at first: a thousand are listed without a stutter. */
const PAGE = 100;

interface Props<Row> {
  /** The first names the rows. */
  columns: string[];
  rows: Row[];
  row: (row: Row) => ComponentChildren;
}

export function Table<Row>({ columns, rows, row }: Props<Row>) {
  const [most, setMost] = useState(PAGE);
  if (!rows.length) return null;
  return (
    <>
      <div class="scroll">
        <table class="cards">
          <thead>
            <tr>
              {columns.map((name) => (
                <th key={name} scope="col">{name}</th>
              ))}
            </tr>
          </thead>
          <tbody>{rows.slice(0, most).map(row)}</tbody>
        </table>
      </div>
      {rows.length > most ? (
        <button type="button" class="more" onClick={() => setMost(most + 4 * PAGE)}>
          Show more of {rows.length}
        </button>
      ) : null}
    </>
  );
}
