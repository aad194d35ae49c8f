"""A Hub on this machine: enough of the HTTP API of the Hugging Face Hub for its real clients to push and pull.

`python tests/local_hub` starts it. huggingface_hub, transformers and datasets use it when `HF_ENDPOINT` and `HF_TOKEN`
are set to what it prints; nothing else has to be set, and no account is needed.

It has repositories of models and data sets with commits, branches, tags and pull requests. Small files are part of a
commit; large ones are uploaded by Xet or Git LFS, as the client chooses, and downloaded by plain HTTP. As on the real
Hub, the API and the storage have two addresses, and a client must never send its token to the second one: storage
refuses such a request.

| module | what it has |
|---|---|
| [`.serving`] | starting and ending the two servers |
| [`.handler`] | one HTTP request: routes, refusals, byte ranges |
| [`.reading`], [`.writing`] | routes of the API |
| [`.storage`], [`.xet`] | routes of the storage, and what Xet sends |
| [`.repositories`] | repositories and contents, in memory and on disk |
| [`.faults`] | faults that tests order |

Of other libraries it uses lz4, for what Xet sends. Files, locks and errors are those of hmm_datasets.
"""
