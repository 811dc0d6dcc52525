"""How the pages look: one style sheet for all of them."""

STYLE = """
:root { color-scheme: light dark; --ink: #1c2529; --paper: #fff; --soft: #55636a; --line: #d5dde1; --well: #f2f5f6;
  --link: #0b5f8a; --heat: 125 178 226; --chart: none; }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #e3e9ec; --paper: #15191c; --soft: #9fadb4;
  --line: #38434a; --well: #1e2529; --link: #7cc4ec; --heat: 42 95 143; --chart: invert(.9) hue-rotate(180deg); } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 64rem;
  margin: 2rem auto 4rem; padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; margin: 2.6rem 0 .6rem; padding-top: .6rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.4rem 0 .2rem; }
p { color: var(--soft); margin: .3rem 0 .8rem; max-width: 50rem; }
a { color: var(--link); }
nav { display: flex; flex-wrap: wrap; gap: .1rem 1rem; font-size: .9rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.5rem, 1fr)); gap: .6rem; margin: .8rem 0; }
.tiles div { background: var(--well); border-radius: 8px; padding: .6rem .8rem; display: flex;
  flex-direction: column; justify-content: space-between; }
.tiles dd { font-size: 1.5rem; font-weight: 600; margin: 0; font-variant-numeric: tabular-nums; }
.tiles dt { color: var(--soft); font-size: .85rem; }
table { border-collapse: collapse; width: 100%; margin: .4rem 0 1rem; }
td, th { padding: .25rem .8rem .25rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; }
thead th { color: var(--soft); font-weight: 400; font-size: .85rem; }
tbody th { font-weight: 400; min-width: 8.5rem; } td { min-width: 4.6rem; }
td:last-child, th:last-child { padding-right: 0; }
ul { list-style: none; margin: .4rem 0 1rem; padding: 0; }
.bars li { display: grid; grid-template-columns: minmax(0, 11rem) minmax(0, 1fr) 4rem; gap: .7rem; align-items: center;
  padding: .1rem 0; break-inside: avoid; }
.bars.many { columns: 2 24rem; column-gap: 2.5rem; }
.bars .name { display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 2; overflow: hidden;
  line-height: 1.25; }
.bars small { color: var(--soft); }
.bars .bar { background: var(--well); border-radius: 3px; height: .95rem; overflow: hidden; }
.bars .bar i { display: block; height: 100%; min-width: 2px; border: 1px solid rgb(110 125 133 / .75);
  border-radius: 3px; }
.bars .value { text-align: right; font-variant-numeric: tabular-nums; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: .85rem; }
.legend li { display: flex; align-items: center; gap: .4rem; max-width: 100%; }
.legend span { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; max-width: 18rem; }
.legend i { flex: none; width: .95rem; height: .95rem; border-radius: 3px; border: 1px solid rgb(110 125 133 / .75); }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 18rem), 1fr)); gap: .8rem; }
.quad { display: grid; grid-template-columns: repeat(4, minmax(0, 1fr)); gap: .5rem; }
figure { margin: 0; break-inside: avoid; }
figure img { display: block; width: 100%; height: auto; border-radius: 5px; }
figcaption { color: var(--soft); font-size: .85rem; margin-top: .2rem; }
.chart img { background: #fff; filter: var(--chart); }
.wide > div { overflow-x: auto; }
.wide img { min-width: 36rem; max-width: 56rem; }
article { break-inside: avoid; }
.matrix { overflow-x: auto; margin: .4rem 0 .8rem; }
.matrix table { width: auto; margin: 0; font-size: .85rem; border-collapse: separate; border-spacing: 0; }
.matrix td { min-width: 2.1rem; height: 2.1rem; padding: 0; text-align: center; vertical-align: middle;
  border: 1px solid var(--line); }
.matrix th { min-width: 0; padding: 0 .4rem 0 0; border: 0; font-size: .85rem; vertical-align: middle; }
.matrix tbody th, .matrix thead th:first-child { position: sticky; left: 0; background: var(--paper);
  min-width: 6rem; max-width: 9rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.matrix thead th { vertical-align: bottom; padding: 0 0 .3rem; } .matrix thead th:first-child { white-space: normal; }
.matrix thead span { display: block; writing-mode: vertical-rl; transform: rotate(180deg); max-height: 9rem;
  margin: auto; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
details { margin: .6rem 0; } summary { cursor: pointer; color: var(--link); }
pre { overflow-x: auto; background: var(--well); border-radius: 6px; padding: .8rem; font-size: .85rem;
  overflow-wrap: normal; }
@media (max-width: 40rem) { .quad { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  table { font-size: .85rem; } tbody th { min-width: 9rem; }
  .bars li { grid-template-columns: minmax(0, 8rem) minmax(0, 1fr) 3.6rem; gap: .5rem; } }
@media print { nav { display: none; } body { max-width: none; margin: 0; font-size: 11pt; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } .wide img { min-width: 0; }
  .matrix table { font-size: 7pt; } .matrix td { min-width: 0; height: auto; } }
"""
