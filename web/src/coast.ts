// The geometry of the picture, without drawing: two lands, the neck between, and who stands where.
//
// Everything is worked out along the way of a request (`u`, from callers to sites) and across it
// (`v`). On a wide page `u` runs to the right, on a narrow one downwards.

export interface Point {
  x: number;
  y: number;
}

export interface Frame {
  wide: boolean;
  width: number;
  height: number;
  /** Half the breadth of the neck. */
  neck: number;
}

export function frame(wide: boolean, gateways: number, sites: number): Frame {
  const shown = Math.max(1, Math.min(sites, LABELLED));
  const neck = Math.max(46, 31 * Math.min(gateways, MAX_GATEWAYS) + 10);
  return wide
    ? { wide, width: 1200, height: sites > LABELLED ? 500 : Math.max(430, gap(sites) * shown + 130), neck }
    : { wide, width: 390, height: sites > LABELLED ? 720 : 430 + gap(sites) * shown, neck: (abreast(gateways) * Math.min(gateways, MAX_GATEWAYS)) / 2 + 12 };
}

/** On a narrow page gateways stand side by side, this far apart. */
export const abreast = (gateways: number) => Math.min(112, 330 / Math.max(1, Math.min(gateways, MAX_GATEWAYS)));

/** More sites than this are drawn as dots. */
export const LABELLED = 12;
/** More gateways than this share the last box. */
export const MAX_GATEWAYS = 4;
/** Sites of a small family have room for two lines each. */
const roomy = (sites: number) => sites <= 6;
const gap = (sites: number) => (roomy(sites) ? 62 : 43);

const at = (frame: Frame, u: number, v: number): Point => (frame.wide ? { x: u, y: v } : { x: v, y: u });
const length = (frame: Frame) => (frame.wide ? frame.width : frame.height);
const breadth = (frame: Frame) => (frame.wide ? frame.height : frame.width);

/** Where the two coasts are, along `u`. */
function coasts(frame: Frame): [number, number] {
  return frame.wide ? [420, 736] : [196, 318];
}

/** The outline of both lands and the neck, as one path. */
export function land(frame: Frame): string {
  const [near, far] = coasts(frame);
  const [end, side] = [length(frame) + 60, breadth(frame) + 60];
  const middle = breadth(frame) / 2;
  const { neck } = frame;
  const [bay, dent] = frame.wide ? [70, 34] : [34, 16];
  const p = (u: number, v: number) => {
    const { x, y } = at(frame, u, v);
    return `${x.toFixed(1)} ${y.toFixed(1)}`;
  };
  const [top, low] = [middle - neck, middle + neck];
  // Each shore swings out into a headland before it turns into the neck.
  return [
    `M${p(-60, -60)}`,
    `L${p(near - bay * 1.3, -60)}`,
    `C${p(near + dent, top * 0.1)} ${p(near - bay * 1.5, top * 0.42)} ${p(near - bay * 0.35, top * 0.62)}`,
    `S${p(near - bay * 0.2, top)} ${p(near + bay * 0.9, top)}`,
    `C${p(near + bay * 1.5, top + 7)} ${p(far - bay * 1.4, top - 5)} ${p(far - bay * 0.7, top)}`,
    `S${p(far + bay * 0.5, top * 0.72)} ${p(far + bay * 0.1, top * 0.5)}`,
    `S${p(far - dent, top * 0.2)} ${p(far + bay * 1.1, -60)}`,
    `L${p(end, -60)} L${p(end, side)} L${p(far + bay * 0.7, side)}`,
    `C${p(far - bay * 0.4, side - (side - low) * 0.25)} ${p(far + bay * 1.2, side - (side - low) * 0.45)} ${p(far + bay * 0.35, low + (side - low) * 0.34)}`,
    `S${p(far + bay * 0.2, low)} ${p(far - bay * 0.8, low)}`,
    `C${p(far - bay * 1.5, low - 6)} ${p(near + bay * 1.4, low + 6)} ${p(near + bay * 0.7, low)}`,
    `S${p(near - bay * 0.3, low + (side - low) * 0.2)} ${p(near - bay * 0.5, low + (side - low) * 0.46)}`,
    `S${p(near + dent * 0.6, side - (side - low) * 0.3)} ${p(near - bay * 1.1, side)}`,
    `L${p(-60, side)}Z`,
  ].join(" ");
}

export interface Places {
  callers: Point[];
  gateways: Point[];
  sites: Point[];
  /** The size of a site's card; nothing when sites are dots. */
  card?: { width: number; height: number };
}

/** Where callers, gateways and sites stand. */
export function places(frame: Frame, callers: number, gateways: number, sites: number): Places {
  const middle = breadth(frame) / 2;
  const shownGateways = Math.min(gateways, MAX_GATEWAYS);
  const [near, far] = coasts(frame);
  const spread = (count: number, u: number, gap: number) =>
    Array.from({ length: count }, (_, i) => at(frame, u, middle + (i - (count - 1) / 2) * gap));
  const places: Places = {
    callers: frame.wide ? spread(callers, 170, 58) : spread(callers, 88, 98),
    gateways: frame.wide
      ? spread(shownGateways, (near + far) / 2, 62)
      : spread(shownGateways, (near + far) / 2, abreast(gateways)),
    sites: [],
  };
  if (sites > LABELLED) {
    places.sites = dots(frame, sites);
  } else {
    places.card = { width: frame.wide ? 270 : 290, height: roomy(sites) ? 50 : 34 };
    const step = gap(sites);
    places.sites = Array.from({ length: sites }, (_, i) =>
      frame.wide ? { x: 1010, y: middle + (i - (sites - 1) / 2) * step } : { x: middle + 20, y: 392 + i * step },
    );
  }
  return places;
}

/** A dot a site, in rows, as large as fits. */
function dots(frame: Frame, sites: number): Point[] {
  const box = frame.wide
    ? { x: 850, y: 84, width: 310, height: frame.height - 150 }
    : { x: 40, y: 380, width: frame.width - 80, height: frame.height - 440 };
  // With room for the next few: when one more comes, the others stay where they are.
  const room = Math.ceil((sites + 1) / 64) * 64;
  const gap = Math.min(30, Math.sqrt((box.width * box.height) / room));
  const across = Math.max(1, Math.floor(box.width / gap));
  return Array.from({ length: sites }, (_, i) => ({
    x: box.x + (i % across) * gap + gap / 2,
    y: box.y + Math.floor(i / across) * gap + gap / 2,
  }));
}

/** Where the field of dots begins, for links that lead to all of them. */
export const field = (frame: Frame): Point => (frame.wide ? { x: 838, y: frame.height / 2 } : { x: frame.width / 2, y: 372 });

/** A calm curve from one place to another. */
export function way(frame: Frame, from: Point, to: Point): string {
  if (frame.wide) {
    const pull = (to.x - from.x) * 0.5;
    return `M${from.x} ${from.y} C${from.x + pull} ${from.y} ${to.x - pull} ${to.y} ${to.x} ${to.y}`;
  }
  const pull = (to.y - from.y) * 0.5;
  return `M${from.x} ${from.y} C${from.x} ${from.y + pull} ${to.x} ${to.y - pull} ${to.x} ${to.y}`;
}

/**
 * The way of a link to the edge of a site's card: straight along the neck, for the water is on both sides, then to the
 * card; on a narrow page along the edge, so that it crosses no other site's card.
 */
export function link(frame: Frame, from: Point, to: Point, card: { width: number } | undefined): string {
  if (!card) return way(frame, from, to);
  const edge = to.x - card.width / 2;
  if (frame.wide) {
    const shore = coasts(frame)[1] + 24;
    const middle = (shore + edge) / 2;
    return `M${from.x} ${from.y} L${shore} ${from.y} C${middle} ${from.y} ${middle} ${to.y} ${edge} ${to.y}`;
  }
  const [rail, shore] = [26, coasts(frame)[1] + 14];
  const run = shore + 18;
  const corner = `Q${rail} ${run} ${rail} ${run + 14} L${rail} ${to.y - 14} Q${rail} ${to.y} ${rail + 14} ${to.y}`;
  return `M${from.x} ${from.y} L${from.x} ${shore} Q${from.x} ${run} ${from.x - 18} ${run} L${rail + 14} ${run} ${corner} L${edge} ${to.y}`;
}
