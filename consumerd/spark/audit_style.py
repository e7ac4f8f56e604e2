# SPDX-License-Identifier: Apache-2.0
"""Style sheet of the audit page, with a light and a dark theme."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root{color-scheme:light dark;
--back:#f6f8fa;--sheet:#fff;--text:#1c2733;--dim:#57677a;--line:#dde4eb;--ok:#0b6e37;--okback:#dcf3e4;
--bad:#a61b14;--badback:#fbe6e4;--busy:#7a4b00;--busyback:#fdf0d5;
--landed:#3b77b5;--quiet:#b9c7d6;--lost:#d9902a;--missing:#cc2b22;--again:#7c5cc4;--mark:#1c2733;
--t0:#3b77b5;--t1:#2b9178;--t2:#d9902a;--t3:#7c5cc4;--t4:#c2557d;--t5:#7b8794}
@media (prefers-color-scheme:dark){:root{
--back:#12171d;--sheet:#1a2129;--text:#e2e8ef;--dim:#9dabba;--line:#2d3742;--ok:#6fd596;--okback:#143323;
--bad:#ff9d94;--badback:#43201e;--busy:#f3c46b;--busyback:#3c2f13;
--landed:#5b9bdb;--quiet:#4a5866;--lost:#e0a24a;--missing:#ff6f64;--again:#a78bf0;--mark:#e2e8ef;
--t0:#5b9bdb;--t1:#4fbfa2;--t2:#e0a24a;--t3:#a78bf0;--t4:#e084a8;--t5:#93a0ad}}
*{box-sizing:border-box}
body{font:14px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
margin:0 auto;max-width:80rem;padding:1.25rem 1rem 2rem;color:var(--text);background:var(--back);overflow-wrap:anywhere}
header{display:flex;flex-wrap:wrap;align-items:center;gap:.4rem .75rem;margin-bottom:1rem}
h1{font-size:1.3rem;margin:0}
h1 small,h2 small{font-size:.9rem;font-weight:400;color:var(--dim);margin-left:.35rem}
h2{font-size:1rem;margin:1.6rem 0 .5rem}
.badge{font-size:.85rem;font-weight:600;padding:.1rem .6rem;border-radius:1rem;white-space:nowrap}
.badge.ok{color:var(--ok);background:var(--okback)}
.badge.bad{color:var(--bad);background:var(--badback)}
.badge.busy{color:var(--busy);background:var(--busyback)}
.note{color:var(--bad);background:var(--badback);border-radius:.4rem;padding:.55rem .8rem;margin:0 0 .8rem}
.note ul{margin:.15rem 0 0;padding-left:1.2rem}
.facts{display:flex;flex-wrap:wrap;gap:.6rem;margin:0 0 .6rem}
.facts>div{flex:1 1 9rem;background:var(--sheet);border:1px solid var(--line);border-radius:.4rem;padding:.55rem .8rem}
dt{color:var(--dim);font-size:.85rem}
dd{margin:0}
dd.main{font-size:1.15rem;font-weight:600;font-variant-numeric:tabular-nums}
dd.more{color:var(--dim);font-size:.85rem}
figure{margin:0;background:var(--sheet);border:1px solid var(--line);border-radius:.4rem;padding:.7rem .8rem}
figure+figure{margin-top:.6rem}
figcaption{color:var(--dim);font-size:.85rem;margin-bottom:.4rem;display:flex;flex-wrap:wrap;gap:.2rem 1.1rem}
figcaption b{color:var(--text);font-weight:600}
.key{white-space:nowrap}
.key i{display:inline-block;width:.75rem;height:.75rem;border-radius:.15rem;margin-right:.35rem;vertical-align:-.08rem}
svg{display:block;width:100%;height:auto;font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
svg text{fill:var(--dim)}
svg .name{fill:var(--text)}
svg .grid{stroke:var(--line);stroke-width:1}
svg .bed{fill:var(--line)}
svg .mark{stroke:var(--mark);stroke-width:2}
.landed{fill:var(--landed);background:var(--landed)}
.quiet{fill:var(--quiet);background:var(--quiet)}
.lost{fill:var(--lost);background:var(--lost)}
.missing{fill:var(--missing);background:var(--missing)}
.again{fill:var(--again);background:var(--again)}
.t0{fill:var(--t0);background:var(--t0)}.t1{fill:var(--t1);background:var(--t1)}.t2{fill:var(--t2);background:var(--t2)}
.t3{fill:var(--t3);background:var(--t3)}.t4{fill:var(--t4);background:var(--t4)}.t5{fill:var(--t5);background:var(--t5)}
svg .band{fill:var(--landed);opacity:.25}
svg .middle{fill:none;stroke:var(--landed);stroke-width:2}
.scroll{overflow-x:auto}
table{border-collapse:separate;border-spacing:0;width:100%;
background:var(--sheet);border:1px solid var(--line);border-radius:.4rem}
th,td{text-align:left;padding:.32rem .7rem;border-top:1px solid var(--line);vertical-align:top}
tr:first-child>*{border-top:0}
th{font-weight:600;color:var(--dim);font-size:.85rem;white-space:nowrap}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.s{white-space:nowrap}
.bad{color:var(--bad)}.busy{color:var(--busy)}.dim{color:var(--dim)}
td.bad,td.busy{font-weight:600}
footer{margin-top:1.5rem;color:var(--dim);font-size:.9rem}
"""
