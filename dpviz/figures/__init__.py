"""Pictures of runs: a Run in, a plotly Figure out. No torch, no widgets, no computing of what a run's facts say.

Each module answers one question and offers the same three functions:

    make() -> Figure                  every trace in it, nothing drawn; a panel makes it once
    draw(figure, run) -> Verdict      change it to show a run, and say in a sentence what it shows
    show(run) -> Figure               both, the sentence as the title, for a cell without a panel

A panel calls draw inside of plotly's batch_update: what was just written cannot be read back, and of two values
written to the same property one is lost. So write each property once.
"""
