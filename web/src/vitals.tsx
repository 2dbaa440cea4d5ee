// How links are: what the gateway that holds one measures on it.

import { useKnown } from "./live";
import { Since, took } from "./pieces";
import type { Link } from "./types";

/** The best round trip among these links; nothing is known of those that other gateways hold. */
export function roundTrip(links: Link[], known: ReturnType<typeof useKnown>): number | undefined {
  const times = links.map((link) => known.links?.get(link.id)?.roundTripUs).filter((time) => time != null);
  return times.length ? Math.min(...times) : undefined;
}

export function RoundTrip({ links }: { links: Link[] }) {
  const time = roundTrip(links, useKnown());
  return <>{time === undefined ? "–" : took(time)}</>;
}

export function LastPacket({ id }: { id: string }) {
  const vitals = useKnown().links?.get(id);
  return vitals ? <Since when={vitals.heard} /> : <>–</>;
}

/** Bytes in both directions, and what is open now. */
export function Carried({ id }: { id: string }) {
  const vitals = useKnown().links?.get(id);
  if (!vitals) return <>–</>;
  const open = vitals.streamsOpen ? `, ${vitals.streamsOpen} open` : "";
  return <>{`${size(vitals.bytesIn + vitals.bytesOut)}${open}`}</>;
}

export function size(bytes: number): string {
  if (bytes < 1024) return `${bytes} B`;
  const power = Math.min(4, Math.floor(Math.log2(bytes) / 10));
  const value = bytes / 1024 ** power;
  return `${value.toFixed(value < 10 ? 1 : 0)} ${["", "KiB", "MiB", "GiB", "TiB"][power]}`;
}
