// The geometry of the networks' picture, without drawing: an island a cloud, a card a resource.

import type { Point } from "./coast";
import type { Nets, Resource } from "./types";

const CARD = { width: 250, height: 50 };
const ISLAND = 300;
const STRAIT = 170;
const ROW = 66;
const SHORE = 110;

export interface Card {
  resource: Resource;
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface Drawn {
  width: number;
  height: number;
  islands: { name: string; x: number; y: number; width: number; height: number }[];
  cards: Map<string, Card>;
  vpns: { key: string; d: string; at: Point; text: string }[];
}

/** Where everything stands. */
export function islands(nets: Nets): Drawn {
  const by = new Map(nets.clouds.map((cloud) => [cloud, nets.resources.filter((resource) => resource.cloud === cloud)]));
  const rows = Math.max(1, ...[...by.values()].map((list) => list.length));
  const height = 62 + rows * ROW + 60;
  const content = nets.clouds.length * ISLAND + (nets.clouds.length - 1) * STRAIT;
  // Room beside the last island for flows that stay on it, and calm around a small family.
  const width = Math.max(content + 60 + 2 * SHORE, 820);
  const left = (width - content) / 2;
  const drawn: Drawn = {
    width,
    height,
    islands: [],
    cards: new Map(),
    vpns: [],
  };
  nets.clouds.forEach((name, column) => {
    const x = left + column * (ISLAND + STRAIT);
    drawn.islands.push({ name, x, y: 30, width: ISLAND, height: height - 60 });
    by.get(name)?.forEach((resource, row) => {
      drawn.cards.set(resource.name, { resource, x: x + 25, y: 84 + row * ROW, ...CARD });
    });
  });
  const at = new Map(drawn.islands.map((island) => [island.name, island]));
  for (const link of nets.links) {
    const [a, b] = [at.get(link.from), at.get(link.to)];
    if (!a || !b) continue;
    const [left, right] = a.x < b.x ? [a, b] : [b, a];
    const [from, to] = [left.x + ISLAND, right.x];
    const middle = (from + to) / 2;
    drawn.vpns.push({
      key: link.name,
      d: `M${from} 62 Q${middle} 44 ${to} 62`,
      at: { x: middle, y: 36 },
      text: link.complete ? `VPN · ${link.tunnels} tunnels` : "VPN · being made",
    });
  }
  return drawn;
}

export interface Arrow {
  key: string;
  from: string;
  to: string;
  d: string;
  at: Point;
  text: string;
  breadth: number;
}

/** What may pass, as arrows between cards. */
export function arrows(nets: Nets, cards: Map<string, Card>): Arrow[] {
  let near = 0;
  return nets.flows.flatMap((flow, i) => {
    const [a, b] = [cards.get(flow.from), cards.get(flow.to)];
    if (!a || !b) return [];
    const whole = flow.what.join(", ");
    const text = whole.length > 20 ? `${whole.slice(0, 19)}…` : whole;
    // Flows that run the other way do not lie on each other.
    const shift = i % 2 ? 8 : -8;
    const [ay, by] = [a.y + a.height / 2 + shift, b.y + b.height / 2 + shift];
    const common = { key: `${flow.from}>${flow.to}`, from: flow.from, to: flow.to, text, breadth: text.length * 7 + 18 };
    if (a.x === b.x) {
      // Those on one island bend out to the left and to the right in turn, each further than the last.
      const turn = near++;
      const [right, reach] = [turn % 2 === 0, 80 + 26 * (Math.floor(turn / 2) % 4)];
      const edge = right ? a.x + a.width : a.x;
      const out = right ? edge + reach : edge - reach;
      const tip = right ? edge + 3 : edge - 3;
      return [{ ...common, d: `M${edge} ${ay} C${out} ${ay} ${out} ${by} ${tip} ${by}`, at: { x: edge + (out - edge) * 0.75, y: (ay + by) / 2 } }];
    }
    const [ax, bx] = a.x < b.x ? [a.x + a.width, b.x - 3] : [a.x, b.x + b.width + 3];
    const pull = (bx - ax) / 2;
    return [{ ...common, d: `M${ax} ${ay} C${ax + pull} ${ay} ${bx - pull} ${by} ${bx} ${by}`, at: { x: (ax + bx) / 2, y: (ay + by) / 2 + shift } }];
  });
}
