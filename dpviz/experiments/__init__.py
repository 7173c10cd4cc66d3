"""What every rank runs to answer a question; each file has the name of its question in `dpviz.questions`."""
