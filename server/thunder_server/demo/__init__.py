"""``thunder demo``: recorded agents against real processes, first without the scheduler, then with it.

plan.py       what each agent will do: stretches of recorded sessions, fitted to the engines
fleet.py      the processes of one run, their start, their end and what they say when they fail
agents.py     an agent process: scripts replayed with the SDK and the ``openai`` client
records.py    what agents report, line by line
engines.py    what engines report about themselves
run.py        one run of a plan under one policy, from the first process to the last record
measures.py   a run in figures: the rows of the table and of the JSON
costs.py      a run as space × time: where the memory of the engines went
timeline.py   a run as coloured segments, one lane a program
progress.py   the terminal while it runs
report.py     the page at the end
story.py      the demo itself: which runs, in which order
"""
