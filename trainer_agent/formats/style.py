"""How the page looks: light and dark, on screen and on paper. ASCII only, as character references mean nothing here."""

STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --text: #1b1f24; --soft: #57606a; --line: #d5dae1;
  --link: #0550ae; --pass: #1a7f37; --warn: #8a5a00; --fail: #c01c28; --error: #8250df; --skip: #57606a;
  --bar: #4a7fc1; --track: #e4e8ee }
@media (prefers-color-scheme: dark) {
  :root { --page: #0f1318; --card: #171c23; --text: #e6eaf0; --soft: #9aa5b1; --line: #303843; --link: #79b8ff;
    --pass: #56d364; --warn: #e3b341; --fail: #ff7b72; --error: #d2a8ff; --skip: #9aa5b1;
    --bar: #4a86cf; --track: #2a323c }
}
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 68rem; padding: 1.5rem 1rem 3rem; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif }
h1, h2, h3, p, ul, dl, dd { margin: 0; padding: 0 }
h1 { font-size: 1.7rem; line-height: 1.2 }
h2 { font-size: 1.15rem; margin: 2rem 0 .6rem }
h3 { display: inline; font-size: 1rem }
code, pre { font: .875em/1.45 ui-monospace, monospace; overflow-wrap: anywhere; white-space: pre-wrap; margin: 0 }
a { color: inherit; text-underline-offset: .2em }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; border-radius: 4px }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 1rem 1.25rem }
.top { border-left: 6px solid var(--tone) }
.top p { margin-top: .4rem } .top h2 { margin: 1.2rem 0 0 }
.soft { color: var(--soft); font-size: .9rem }
.pass { --tone: var(--pass) } .warn, .warning { --tone: var(--warn) } .fail, .retry, .fatal { --tone: var(--fail) }
.error { --tone: var(--error) } .skip, .none, .info { --tone: var(--skip) }
.finding.error, .finding .error { --tone: var(--fail) }
.badge { color: var(--tone); font-weight: 600; white-space: nowrap }
h1 .badge { text-transform: uppercase }
.suspects { list-style: none; margin-top: .4rem }
.hint { margin-top: .3rem; padding-left: .8rem; border-left: 3px solid var(--link); overflow-wrap: anywhere }
.wide { overflow-x: auto } .finding .wide { margin-top: .6rem }
table { border-collapse: collapse; font-size: .9rem }
th, td { border: 1px solid var(--line); padding: .3rem .6rem; text-align: left; vertical-align: top }
thead th { white-space: nowrap } .grid tbody th { min-width: 11rem }
td.cell a { display: block; text-decoration: none } td.cell a:hover { text-decoration: underline }
caption { text-align: left; color: var(--soft); font-size: .9rem; padding-bottom: .4rem }
td.cell { background: color-mix(in srgb, var(--tone) 12%, transparent); white-space: nowrap }
td.cell.skip, td.cell.none { background: none }
td.cell.fail { background: color-mix(in srgb, var(--tone) 24%, transparent) }
details.check { background: var(--card); border: 1px solid var(--line); border-left: 4px solid var(--tone);
  border-radius: 6px; margin: .4rem 0 }
summary { cursor: pointer; padding: .5rem .8rem; overflow-wrap: anywhere }
summary .badge { display: inline-block; min-width: 4.2rem }
.inside { padding: .2rem 1rem 1rem 1.9rem; display: grid; gap: .8rem }
.finding { padding-left: .8rem; border-left: 3px solid var(--tone); list-style: none; margin-bottom: .8rem }
.finding .message { overflow-wrap: anywhere }
.bars th { font-weight: 400 } .bars svg { display: block; width: 14rem; height: .9rem }
.gang .inside { gap: .6rem } .gang pre { background: var(--page); border: 1px solid var(--line); border-radius: 6px;
  padding: .5rem .8rem; margin-top: .2rem }
.arrivals th { min-width: 11rem } .arrivals th code { color: var(--soft); font-weight: 400 }
.arrivals td:nth-child(3) { white-space: nowrap }
.arrivals td:last-child { min-width: 9rem; overflow-wrap: anywhere }
.map { display: block } .map text { font: 11px ui-monospace, monospace; fill: var(--text); dominant-baseline: central }
.map text, .cross { pointer-events: none } .map .name { pointer-events: auto }
.map .name.bad { fill: var(--fail); font-weight: 700 }
.cross { stroke: var(--card); stroke-width: 1.5 }
rect.bad:has(+ .small) { fill: var(--card) }
.cross.small { stroke: var(--fail); stroke-width: 2.5; stroke-linecap: square }
rect.bad, .value.bad { fill: var(--fail) } .map rect.bad + text { fill: var(--card); font-weight: 700 }
.itself { fill: var(--card) } .swatch { vertical-align: -1px; margin-left: .1rem } .told { padding-left: 1.2rem }
.rate-0 { fill: var(--card); stroke: var(--bar) }
.rate-1 { fill: color-mix(in srgb, var(--bar) 8%, var(--card)) }
.rate-2 { fill: color-mix(in srgb, var(--bar) 20%, var(--card)) }
.rate-3 { fill: color-mix(in srgb, var(--bar) 32%, var(--card)) }
.rate-4 { fill: color-mix(in srgb, var(--bar) 46%, var(--card)) }
.rate-5 { fill: color-mix(in srgb, var(--bar) 60%, var(--card)) }
.rate-6 { fill: color-mix(in srgb, var(--bar) 76%, var(--card)) }
.track { fill: var(--track) } .value { fill: var(--bar) } .mark { fill: var(--text) }
footer { margin-top: 2rem; color: var(--soft); font-size: .85rem }
@media print { body { max-width: none } details.check { break-inside: avoid } }
"""
