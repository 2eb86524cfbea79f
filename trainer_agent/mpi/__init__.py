"""MPI jobs: keys and sshd of the pods, and the mpirun that starts processes on them."""
