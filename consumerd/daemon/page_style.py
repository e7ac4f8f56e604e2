# SPDX-License-Identifier: Apache-2.0
"""Style sheet of the status page, for light and dark mode, wide and narrow screens."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root{color-scheme:light dark;
--back:#f6f8fa;--sheet:#fff;--text:#1c2733;--dim:#57677a;--line:#dde4eb;--ok:#0b6e37;--okback:#dcf3e4;
--bad:#a61b14;--badback:#fbe6e4;--busy:#7a4b00;--busyback:#fdf0d5;--fill:#3b77b5;--link:#1f5fa8}
@media (prefers-color-scheme:dark){:root{
--back:#12171d;--sheet:#1a2129;--text:#e2e8ef;--dim:#9dabba;--line:#2d3742;--ok:#6fd596;--okback:#143323;
--bad:#ff9d94;--badback:#43201e;--busy:#f3c46b;--busyback:#3c2f13;--fill:#5b9bdb;--link:#8dbdf2}}
*{box-sizing:border-box}
body{font:14px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
margin:0 auto;max-width:80rem;padding:1.25rem 1rem 2rem;
color:var(--text);background:var(--back);overflow-wrap:anywhere}
header{display:flex;flex-wrap:wrap;align-items:center;gap:.4rem .75rem;margin-bottom:1rem}
h1{font-size:1.3rem;margin:0}
h1 small{font-size:1rem;font-weight:400;color:var(--dim);margin-left:.35rem}
h2{font-size:1rem;margin:1.6rem 0 .5rem}
h2 small{font-size:.9rem;font-weight:400;color:var(--dim);margin-left:.35rem}
a{color:var(--link)}
.badge{font-size:.85rem;font-weight:600;padding:.1rem .6rem;border-radius:1rem;white-space:nowrap}
.badge.ok{color:var(--ok);background:var(--okback)}
.badge.bad{color:var(--bad);background:var(--badback)}
.badge.busy{color:var(--busy);background:var(--busyback)}
.note{color:var(--bad);background:var(--badback);border-radius:.4rem;padding:.55rem .8rem;margin:0 0 .8rem}
.note strong{font-weight:600}
.note ul{margin:.15rem 0 0;padding-left:1.2rem}
.facts{display:flex;flex-wrap:wrap;gap:.6rem;margin:0 0 .6rem}
.facts>div{flex:1 1 9rem;background:var(--sheet);border:1px solid var(--line);border-radius:.4rem;padding:.55rem .8rem}
.facts>div.long{flex-basis:18rem}
dt{color:var(--dim);font-size:.85rem}
dd{margin:0}
dd.main{font-size:1.15rem;font-weight:600;font-variant-numeric:tabular-nums}
.long dd.main{font-size:1rem}
dd.more{color:var(--dim);font-size:.85rem}
.bar{height:.4rem;border-radius:.2rem;background:var(--line);margin:.3rem 0;overflow:hidden}
.bar i{display:block;height:100%;background:var(--fill)}
table{border-collapse:separate;border-spacing:0;width:100%;
background:var(--sheet);border:1px solid var(--line);border-radius:.4rem}
th,td{text-align:left;padding:.32rem .7rem;border-top:1px solid var(--line);vertical-align:top}
tr:first-child>*{border-top:0}
th{font-weight:600;color:var(--dim);font-size:.85rem;white-space:nowrap;overflow-wrap:normal}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap;overflow-wrap:normal}
.s{white-space:nowrap;overflow-wrap:normal}
tr.why td{border-top:0;padding-top:0;color:var(--bad)}
.busy{color:var(--busy)}
td .bad,td .busy{font-weight:600}
.bad{color:var(--bad)}.dim{color:var(--dim)}
footer{margin-top:1.5rem;color:var(--dim);font-size:.9rem}
@media (max-width:54rem){
table.rows,table.rows tbody{display:block}
table.rows tr{display:grid;grid-template-columns:1fr 1fr;gap:.1rem 1rem;padding:.5rem .8rem;
border-top:1px solid var(--line)}
table.rows tr.heads{display:none}
table.rows tr.heads+tr{border-top:0}
table.rows tr.why{display:block;border-top:0;padding-top:0}
table.rows td{display:flex;flex-wrap:wrap;justify-content:space-between;gap:0 .6rem;
border:0;padding:0;text-align:left;white-space:normal}
table.rows td[data-is]::before{content:attr(data-is);color:var(--dim)}
table.rows td.wide{grid-column:1/-1}
table.rows td.wide{justify-content:flex-start}
table.rows td.title{grid-column:1/-1;font-weight:600}
table.rows td.title::before{content:none}
}
@media (max-width:24rem){table.rows tr{grid-template-columns:1fr}}
"""
