"""Python commands forked from one process that has imported vLLM and DeepSpeed.

    os.environ |= WarmProcess().start()      # once, in the process that controls the tests
    install()                                # in each test process; then, unchanged:
    subprocess.Popen([sys.executable, "-m", "outrider.serving.vllm_command", ...])

A fresh interpreter spends 10 s of a core on the imports of a server, 5 to 10 s on those of a load
generator or of a stage. All test processes share one process that has them already (process.py),
and commands of `MODULES` are forked from it (commands.py): with the descriptors, environment,
affinity and exit code that `subprocess` would give them, each in a session of its own. So are the
test processes, and multiprocessing's fork servers, of which training ranks and children are forked.
Commands whose environment asks for spawned engines (OUTRIDER_FORK_ENGINES=0) and all others start
as ever, so each has a test of the real start.
"""
