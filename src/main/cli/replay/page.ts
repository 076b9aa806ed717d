// The style and the script of the report page; the script draws the charts from the page's own data element.

export const PAGE_STYLE = `
:root {
  --ground: #f7f8fa; --panel: #ffffff; --line: #dde1e7; --text: #1b2430; --soft: #5c6775;
  --local: #2f7d4f; --pulled: #2563c9; --computed: #c9781f; --good: #2f7d4f; --bad: #b3261e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #12161c; --panel: #1a2029; --line: #2f3844; --text: #e6eaf0; --soft: #9aa6b5;
    --local: #55b37c; --pulled: #6ea0f5; --computed: #e2a04f; --good: #55b37c; --bad: #f2766d;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 24px; max-width: 1240px; background: var(--ground); color: var(--text);
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
h1 { margin: 0; font-size: 24px; }
h2 { margin: 0; font-size: 16px; }
header p, figcaption p { margin: 2px 0 0; color: var(--soft); }
figcaption p { font-size: 13px; }
.verdict { margin: 16px 0; padding: 10px 14px; border-left: 4px solid; background: var(--panel); border-radius: 4px; }
ul.verdict { padding-left: 32px; }
.verdict.good { border-color: var(--good); }
.verdict.bad { border-color: var(--bad); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: 12px; }
.card { padding: 12px 14px; background: var(--panel); border: 1px solid var(--line); border-radius: 6px; }
.card span, .card em { display: block; color: var(--soft); font-style: normal; font-size: 13px; }
.card strong { display: block; font-size: 22px; font-variant-numeric: tabular-nums; }
.card.local strong { color: var(--local); }
.card.pulled strong { color: var(--pulled); }
.card.computed strong { color: var(--computed); }
main { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(520px, 100%), 1fr)); gap: 12px; margin: 12px 0; }
figure { margin: 0; padding: 14px; min-width: 0; background: var(--panel); border: 1px solid var(--line); border-radius: 6px; }
.chart { margin-top: 8px; }
.chart .u-legend { color: var(--soft); font-size: 13px; text-align: left; }
.chart p { padding: 80px 0; text-align: center; color: var(--soft); }
table { width: 100%; border-collapse: collapse; background: var(--panel); border: 1px solid var(--line); border-radius: 6px; }
.chart table { width: auto; border: 0; }
body > table th, body > table td { padding: 7px 14px; text-align: left; vertical-align: top; border-top: 1px solid var(--line); }
body > table th { width: 260px; color: var(--soft); font-weight: 500; }
body > table td { overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
`;

export const PAGE_SCRIPT = `
(() => {
  'use strict';
  const data = JSON.parse(document.getElementById('data').textContent);
  const height = 260;
  let charts = [];

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();
  const axis = (label, more) => ({
    label, stroke: color('soft'), grid: { stroke: color('line'), width: 1 }, ticks: { stroke: color('line'), width: 1 },
    font: '12px system-ui, sans-serif', labelFont: '12px system-ui, sans-serif', labelSize: 22, ...more,
  });
  const short = (value) => value >= 1e6 ? trim(value / 1e6) + ' M' : value.toLocaleString('en-US');
  const micros = (value) => value >= 1e6 ? trim(value / 1e6) + ' s' : value >= 1e3 ? trim(value / 1e3) + ' ms' : trim(value) + ' us';
  const trim = (value) => String(Number(value.toPrecision(3)));
  const overTime = () => axis('Time since the first request (s)', { size: 38 });
  const fromZero = (room) => (plot, low, high) => [0, Math.max(1, high * room)];
  const wholeRun = () => [0, data.time.endS];
  // 1, 2 and 5 times each power of ten; only the powers where the labels would touch.
  const roundLatencies = (plot, axisIndex, low, high) => {
    const steps = Math.log10(high / low) > plot.width / 250 ? [1] : [1, 2, 5];
    const ticks = [];
    for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10) {
      ticks.push(...steps.map((step) => step * power).filter((tick) => tick >= low && tick <= high));
    }
    return ticks;
  };
  const fixed = (digits) => (plot, value) => value == null ? '-' : value.toFixed(digits);

  function draw(id, options, columns) {
    const place = document.getElementById(id);
    place.replaceChildren();
    if (columns[0].length === 0) {
      const note = document.createElement('p');
      note.textContent = 'nothing was measured';
      place.append(note);
      return;
    }
    charts.push([place, new uPlot({ width: place.clientWidth, height, ...options }, columns, place)]);
  }

  function drawSources() {
    const { timeS, localPerS, pulledPerS, computedPerS } = data.time;
    const upToPulled = localPerS.map((value, bin) => value + pulledPerS[bin]);
    const upToComputed = upToPulled.map((value, bin) => value + computedPerS[bin]);
    const raw = [null, computedPerS, pulledPerS, localPerS];
    const layer = (label, name) => ({
      label, stroke: color(name), fill: color(name), width: 1, points: { show: false },
      value: (plot, value, series, index) => index == null ? '-' : raw[series][index].toFixed(0) + ' /s',
    });
    draw('sources', {
      scales: { x: { time: false, range: wholeRun }, y: { range: fromZero(1.05) } },
      axes: [overTime(), axis('Blocks per second', { size: 64, values: (plot, ticks) => ticks.map(short) })],
      series: [{ label: 'Time', value: fixed(2) }, layer('Computed', 'computed'), layer('Pulled', 'pulled'), layer('Local', 'local')],
    }, [timeS, upToComputed, upToPulled, localPerS]);
  }

  function drawBytes() {
    const { timeS, bytesPulledPerS } = data.time;
    const mebibytes = bytesPulledPerS.map((value) => value / 1048576);
    draw('bytes', {
      scales: { x: { time: false, range: wholeRun }, y: { range: fromZero(1.05) } },
      axes: [overTime(), axis('MiB per second', { size: 64, values: (plot, ticks) => ticks.map(short) })],
      series: [
        { label: 'Time', value: fixed(2) },
        { label: 'Pulled', stroke: color('pulled'), fill: color('pulled') + '40', width: 2, points: { show: false },
          value: (plot, value) => value == null ? '-' : value.toFixed(1) + ' MiB/s' },
      ],
    }, [timeS, mebibytes]);
  }

  function drawLatency(id, name) {
    const { micros: bins, counts, p50, p99 } = data[id];
    const marks = (plot) => {
      const { ctx, bbox } = plot;
      ctx.save();
      ctx.font = 12 * devicePixelRatio + 'px system-ui, sans-serif';
      ctx.strokeStyle = ctx.fillStyle = color('text');
      ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
      [['p50', p50], ['p99', p99]].forEach(([label, value], row) => {
        const x = Math.round(plot.valToPos(value, 'x', true));
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
        const right = x > bbox.left + bbox.width * 0.75;
        ctx.textAlign = right ? 'right' : 'left';
        ctx.fillText(label + ' ' + micros(value), x + (right ? -6 : 6) * devicePixelRatio, bbox.top + (14 + 16 * row) * devicePixelRatio);
      });
      ctx.restore();
    };
    draw(id, {
      scales: {
        x: { time: false, distr: 3, range: (plot, low, high) => [low / 1.1, high * 1.1] },
        y: { range: fromZero(1.15) },
      },
      axes: [
        axis('Latency (logarithmic)', {
          size: 38, splits: roundLatencies, filter: (plot, ticks) => ticks, values: (plot, ticks) => ticks.map(micros),
        }),
        axis(name + 's per bin', { size: 64, values: (plot, ticks) => ticks.map((tick) => Number.isInteger(tick) ? short(tick) : '') }),
      ],
      series: [
        { label: 'Latency', value: (plot, value) => value == null ? '-' : micros(value) },
        { label: name + 's', stroke: color('pulled'), fill: color('pulled') + '80', width: 1, points: { show: false },
          paths: uPlot.paths.bars({ size: [0.9, 60] }), value: fixed(0) },
      ],
      hooks: { draw: [marks] },
    }, [bins, counts.map((count) => count === 0 ? null : count)]);
  }

  function drawAll() {
    for (const [, chart] of charts) chart.destroy();
    charts = [];
    drawSources();
    drawBytes();
    drawLatency('lookup', 'Lookup');
    drawLatency('load', 'Load');
  }

  drawAll();
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawAll);
  addEventListener('resize', () => {
    for (const [place, chart] of charts) chart.setSize({ width: place.clientWidth, height });
  });
})();
`;
